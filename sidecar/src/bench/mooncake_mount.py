"""Mooncake Store's own segment mount, as a contestant of `siding bench mount`.

Runs with the Python that has the Mooncake wheel, from a file, by `python -c` or from stdin:

    PYTHON -I -c "$SOURCE" --bytes N --page 2097152|1073741824|4096 --rounds R [--interactive]

Each round prints one JSON object on a line of its own on stdout. With `--interactive` each round
waits for a line on stdin, so that the caller can run other contestants in between; the end of
stdin ends it. (From `python -` that is not possible: there stdin is the program.) Mooncake's logs
go to stderr, and only when it failed. Exit status: 0 done, 1 Mooncake failed, 2 it could not be
asked (arguments, no wheel, too few free huge pages), 128 + signal when told to stop.

What is counted
---------------
The mount of a segment in Mooncake is part of `MooncakeDistributedStore.setup(global_segment_size)`:
allocate (one mmap; with huge pages MAP_POPULATE touches them in the calling thread), register with
the transfer engine, announce to the master. `setup` also starts a client: engine, ports,
connections. So every round sets up, in one fresh process,

1. three clients with a small segment (16 MiB) on ordinary pages, which Mooncake does not touch.
   The first is thrown away (it pays for what a process pays once); the quicker of the other two is
   the baseline: the client's start and the fixed part of a mount, the master's answer included.
2. one client with the segment asked for.

`mount_seconds` is the second less the baseline: only what grows with the segment. All that is fixed
is subtracted, to Mooncake's advantage. Loading the library, starting the master and unmounting
(the process ends, and its pages are free again) are outside of both.

Without huge pages (`--page 4096`) Mooncake allocates and does not touch: `touched_bytes` shows it,
and the time is not that of a usable segment.

`--rdma-touch` adds `rdma_touch_seconds`: the wheel's own code for segments of protocol `rdma` (the
mmap without MAP_POPULATE, then up to 16 threads that write one byte a page), called directly as
it takes an RDMA device to get there by `setup`; registration is not in it. It is the quickest way
that Mooncake has to touch huge pages; over `tcp`, which `mount_seconds` is about, one thread does.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

HOST = "127.0.0.1"
SMALL_SEGMENT = 16 << 20
BASE_PAGE = 4096
HUGE_PAGE_NAMES = {2 << 20: "2MB", 1 << 30: "1GB"}
STARTS_OF_MASTER = 3
SECONDS_FOR_MASTER = 20.0
SECONDS_FOR_PAGES = 5.0
SLOWEST_BYTES_PER_SECOND = 64 << 20  # memory that a virtual machine never touched is that slow
PR_SET_PDEATHSIG = 1


class CannotAsk(Exception):
    """The measurement can't be made here; nothing is wrong with Mooncake."""


class MooncakeFailed(Exception):
    """Mooncake did not do what was asked of it."""


# --- The pool of huge pages -----------------------------------------------------------------------


def pool_bytes_free(page: int) -> int:
    """Bytes of huge pages that a new mapping could still get: free and promised to nobody."""
    pool = Path(f"/sys/kernel/mm/hugepages/hugepages-{page // 1024}kB")
    try:
        free, reserved = (
            int((pool / name).read_text()) for name in ("free_hugepages", "resv_hugepages")
        )
    except OSError as error:
        raise CannotAsk(f"the kernel has no pages of {page} bytes: {error}") from error
    return (free - reserved) * page


def await_pool(size: int, page: int) -> None:
    """Wait until `size` bytes are free: whoever had them may just be exiting."""
    deadline = time.monotonic() + SECONDS_FOR_PAGES
    while (free := pool_bytes_free(page)) < size:
        if time.monotonic() > deadline:
            raise CannotAsk(
                f"{size // page} huge pages of {page} bytes are needed, {free // page} are free: "
                f"raise /sys/kernel/mm/hugepages/hugepages-{page // 1024}kB/nr_hugepages"
            )
        time.sleep(0.02)


def own_memory(page: int) -> tuple[int, int]:
    """Of this process: bytes present in huge pages of that size, and bytes of ordinary pages."""
    huge = ordinary = kernel_page = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "KernelPageSize":
            kernel_page = int(value.split()[0]) * 1024
        elif key == "Rss":
            ordinary += int(value.split()[0]) * 1024
        elif key in ("Shared_Hugetlb", "Private_Hugetlb") and kernel_page == page:
            huge += int(value.split()[0]) * 1024
    return huge, ordinary


# --- Processes ------------------------------------------------------------------------------------


def die_with_parent() -> None:
    """Have the kernel kill the calling process when its parent goes, however it goes."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def environment(page: int) -> dict[str, str]:
    """The caller's environment without its settings for Mooncake, with those for `page`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MC_", "MOONCAKE_"))}
    env["MC_TCP_BIND_ADDRESS"] = HOST
    if page in HUGE_PAGE_NAMES:
        env |= {"MC_STORE_USE_HUGEPAGE": "1", "MC_STORE_HUGEPAGE_SIZE": HUGE_PAGE_NAMES[page]}
    return env


def in_child(job: Callable[[], dict[str, float]], log: int, seconds: float) -> dict[str, float]:
    """Run `job` in a process of its own, which frees its memory by ending; it prints to `log`."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        exit_status = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            die_with_parent()
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.write(writer, json.dumps(job()).encode())
            exit_status = 0
        except BaseException as error:  # the forked copy must end here, whatever comes
            os.write(log, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(exit_status)
    os.close(writer)
    status: int | None = None
    answer = b""
    try:
        deadline = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise MooncakeFailed(f"the client took more than {seconds:.0f} s")
            part = os.read(reader, 65536)
            if not part:
                break
            answer += part
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(reader)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if status != 0 or not answer:
        raise MooncakeFailed(f"the client ended with status {status}")
    result: dict[str, float] = json.loads(answer)
    return result


def free_port() -> int:
    """A loopback TCP port that nobody has right now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether somebody accepts connections at `port`."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


@contextmanager
def running_master(wheel: Path, log: int) -> Iterator[str]:
    """The wheel's master on free loopback ports, for as long as the context lasts: its address."""
    for attempt in range(1, STARTS_OF_MASTER + 1):
        rpc_port, metrics_port = free_port(), free_port()
        master = subprocess.Popen(
            [
                wheel / "mooncake_master",
                f"--rpc_address={HOST}",
                f"--rpc_port={rpc_port}",
                f"--metrics_host={HOST}",
                f"--metrics_port={metrics_port}",
                "--logtostderr=true",
            ],
            cwd="/",
            env=environment(BASE_PAGE),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
        )
        try:
            deadline = time.monotonic() + SECONDS_FOR_MASTER
            while master.poll() is None and not answers(rpc_port):
                if time.monotonic() > deadline:
                    raise MooncakeFailed(f"the master did not answer in {SECONDS_FOR_MASTER:.0f} s")
                time.sleep(0.02)
            if master.poll() is None:
                yield f"{HOST}:{rpc_port}"
                return
        finally:
            # Killed rather than asked: it holds nothing worth keeping, and asking takes a second.
            master.kill()
            master.wait()
        if attempt == STARTS_OF_MASTER:
            raise MooncakeFailed(f"the master ended at once with status {master.returncode}")


# --- What runs in a client's process --------------------------------------------------------------


@dataclass(frozen=True)
class Client:
    """A client that is set up, kept for as long as this object is referred to."""

    store: object
    seconds: float
    huge_bytes: int
    ordinary_bytes: int


def set_up(master: str, segment: int, page: int) -> Client:
    """Start a client that mounts `segment` bytes, timed, and see what memory that took."""
    from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]

    os.environ.clear()
    os.environ.update(environment(page))  # read by its constructor and by each allocation
    store = MooncakeDistributedStore()
    huge_before, ordinary_before = own_memory(page)
    begin = time.perf_counter()
    code = store.setup(HOST, "P2PHANDSHAKE", segment, 0, "tcp", "", master)
    seconds = time.perf_counter() - begin
    huge, ordinary = own_memory(page)
    if code != 0:
        raise MooncakeFailed(f"setup of {segment} bytes returned {code}")
    return Client(store, seconds, huge - huge_before, ordinary - ordinary_before)


def mount(master: str, size: int, page: int, clients: list[Client]) -> dict[str, float]:
    """Run a round, see the head of this file. `clients` keeps its clients: to close is slow."""
    free = pool_bytes_free(page) if page in HUGE_PAGE_NAMES else 0
    clients += [set_up(master, SMALL_SEGMENT, BASE_PAGE) for _ in range(3)]
    baseline = min(clients[1:], key=lambda client: client.seconds)
    clients.append(set_up(master, size, page))
    asked = clients[-1]
    taken = free - pool_bytes_free(page) if page in HUGE_PAGE_NAMES else 0
    if page in HUGE_PAGE_NAMES and asked.huge_bytes != size:
        raise MooncakeFailed(f"{asked.huge_bytes} bytes of {size} are on pages of {page} bytes")
    return {
        "mount_seconds": max(0.0, asked.seconds - baseline.seconds),
        "setup_seconds": asked.seconds,
        "baseline_setup_seconds": baseline.seconds,
        "huge_bytes": asked.huge_bytes,
        # Of the whole machine, so others show in it: for the eye, while huge_bytes is exact.
        "pool_bytes": taken,
        "touched_bytes": asked.huge_bytes + max(0, asked.ordinary_bytes - baseline.ordinary_bytes),
    }


def rdma_touch(wheel: Path, size: int, page: int) -> dict[str, float]:
    """Allocate and touch as the wheel's `setup` does for protocol `rdma`, by its own functions."""
    os.environ.clear()
    os.environ.update(environment(page))
    import mooncake.store  # type: ignore[import-not-found] # noqa: F401 - loads what store.so needs

    library = ctypes.CDLL(str(wheel / "store.so"))
    allocate = library["_ZN8mooncake27allocate_buffer_mmap_memoryEmmb"]
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_bool]
    populate = library["_ZN8mooncake24populate_hugetlb_mappingEPvm"]
    populate.restype = None
    populate.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    begin = time.perf_counter()
    address = allocate(size, page, True)
    if not address:
        raise MooncakeFailed(f"no memory for {size} bytes")
    populate(address, size)
    seconds = time.perf_counter() - begin
    huge, _ = own_memory(page)
    if huge != size:
        raise MooncakeFailed(f"{huge} bytes of {size} are on pages of {page} bytes")
    return {"rdma_touch_seconds": seconds}


# --- The whole ------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="mooncake_mount", description="Time Mooncake Store's segment mount."
    )
    parser.add_argument("--bytes", type=int, required=True, help="size of the segment")
    parser.add_argument("--page", type=int, required=True, choices=[BASE_PAGE, *HUGE_PAGE_NAMES])
    parser.add_argument(
        "--rounds", type=int, default=3, help="how many; with --interactive at most that many"
    )
    parser.add_argument(
        "--interactive", action="store_true", help="wait for a line on stdin before each round"
    )
    parser.add_argument(
        "--rdma-touch", action="store_true", help="also time how it touches for protocol rdma"
    )
    args = parser.parse_args()
    if args.bytes <= 0 or args.bytes % args.page:
        parser.error(f"--bytes must be a multiple of {args.page}")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.rdma_touch and args.page not in HUGE_PAGE_NAMES:
        parser.error("--rdma-touch is about huge pages")
    return args


def measure(args: argparse.Namespace, wheel: Path, log: int) -> None:
    """All rounds, each reported as it ends."""
    seconds = 60.0 + args.bytes / SLOWEST_BYTES_PER_SECOND
    huge = args.page in HUGE_PAGE_NAMES
    clients: list[
        Client
    ] = []  # stays empty here: each child fills its own copy and unmounts by ending
    with running_master(wheel, log) as master:
        for number in range(args.rounds):
            if args.interactive and not sys.stdin.readline():
                return
            if huge:
                await_pool(args.bytes, args.page)
            result = in_child(lambda: mount(master, args.bytes, args.page, clients), log, seconds)
            if args.rdma_touch:
                await_pool(args.bytes, args.page)
                result |= in_child(lambda: rdma_touch(wheel, args.bytes, args.page), log, seconds)
            line = {"round": number, "bytes": args.bytes, "page": args.page, **result}
            print(json.dumps(line), flush=True)


def stop(number: int, _frame: FrameType | None) -> NoReturn:
    """End by the ordinary way, so that the master and the client are killed."""
    sys.exit(128 + number)


def main() -> int:
    """The exit status."""
    args = arguments()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    log = os.memfd_create("mooncake-log")
    try:
        found = importlib.util.find_spec("mooncake")
        if found is None or found.origin is None:
            raise CannotAsk("this Python has no Mooncake: run tests/mooncake/install")
        measure(args, Path(found.origin).parent, log)
    except CannotAsk as error:
        print(f"mooncake_mount: {error}", file=sys.stderr)
        return 2
    except (MooncakeFailed, OSError) as error:
        sys.stderr.write(os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace"))
        print(f"mooncake_mount: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
