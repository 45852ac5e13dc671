//! The target against real sockets, as clients of either version speak to it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use siding_fabric::{MapRequest, Mapping, Pages, Placement, Source, Window};
use siding_transfer::loops::IoLoops;
use siding_transfer::peers::Peers;
use siding_transfer::target::{
    Count, Counters, Outcome, Patience, Published, PublishedBuffer, Snapshot, Target,
};
use siding_transfer::{Door, Listener};
use siding_wire::frame::{Direction, Request, Status, Version};

const BASE: u64 = 0x7000_0000_0000;
const LEN: u64 = 16 << 20;
const LONG: Duration = Duration::from_secs(60);

struct Fixture {
    loops: IoLoops,
    target: Option<Target>,
    counters: Arc<Counters>,
    published: Published,
    window: Window,
    address: SocketAddr,
}

fn window(len_bytes: u64) -> Window {
    let request = MapRequest {
        len_bytes,
        pages: Pages::Base,
        placement: Placement::Any,
        source: Source::Process,
    };
    Window::whole(Arc::new(Mapping::new(request).unwrap()))
}

fn buffer(address: u64, window: &Window) -> PublishedBuffer {
    PublishedBuffer {
        location: "cpu:0".to_owned(),
        address,
        window: window.clone(),
    }
}

impl Fixture {
    fn new() -> Self {
        Self::with("127.0.0.1", Peers::Any, 100, Patience::default())
    }

    fn with(host: &str, peers: Peers, max_connections: usize, patience: Patience) -> Self {
        let host: IpAddr = host.parse().unwrap();
        let listener = Listener::bind(SocketAddr::new(host, 0)).unwrap();
        let loops = IoLoops::start(2).unwrap();
        let (published, window) = (Published::default(), window(LEN));
        published.replace(vec![buffer(BASE, &window)]).unwrap();
        let door = Door {
            peers,
            max_connections,
        };
        let target = Target::start(listener, &loops, door, patience, published.clone()).unwrap();
        Self {
            address: target.address(),
            counters: target.counters(),
            target: Some(target),
            loops,
            published,
            window,
        }
    }

    fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    fn count(&self, direction: Direction, outcome: Outcome) -> Count {
        self.counters.snapshot().count(direction, outcome)
    }

    /// Waits until the counters say so.
    fn until(&self, what: impl Fn(&Snapshot) -> bool) {
        let started = Instant::now();
        while !what(&self.counters.snapshot()) {
            let found = self.counters.snapshot();
            assert!(started.elapsed() < LONG, "never: {found:?}");
            thread::yield_now();
        }
    }

    fn stop(&mut self, grace: Duration) -> bool {
        let target = self.target.take().unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(target.stop(grace))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.target.take());
        let left = self.loops.stop(LONG);
        if !thread::panicking() {
            assert_eq!(left, 0);
            assert_eq!(self.counters.snapshot().door.open, 0);
        }
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

fn request(direction: Direction, version: Version, address: u64, size_bytes: u64) -> [u8; 24] {
    let request = Request {
        direction,
        version,
        address,
        size_bytes,
    };
    let mut bytes = request.encode();
    bytes[17..].fill(0xa5);
    bytes
}

fn status(stream: &mut TcpStream) -> Option<Status> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).ok()?;
    Some(Status::decode(&bytes).unwrap())
}

/// A small read that succeeds.
fn is_served(stream: &mut TcpStream) {
    let header = request(Direction::Read, Version::V2, BASE, 5);
    stream.write_all(&header).unwrap();
    assert_eq!(status(stream), Some(Status::Ok));
    stream.read_exact(&mut [0; 5]).unwrap();
}

/// The peer says no more: it has closed, or reset.
fn closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) >> 3) as u8 ^ seed;
    (0..len).map(byte).collect()
}

fn count(operations: u64, bytes: u64) -> Count {
    Count { operations, bytes }
}

#[test]
fn both_versions_write_and_read_one_request_after_the_other() {
    let fixture = Fixture::new();
    let mut stream = fixture.connect();
    let mut bytes_moved = 0;
    let sizes = [1, 4096, 1 << 20, (5 << 20) + 3];
    for (at, size) in sizes.into_iter().enumerate() {
        let (offset, size_bytes) = (7 * at as u64, size as u64);
        for version in [Version::V1, Version::V2] {
            let data = pattern(size, at as u8);
            let header = request(Direction::Write, version, BASE + offset, size_bytes);
            stream.write_all(&header).unwrap();
            stream.write_all(&data).unwrap();
            if version == Version::V2 {
                assert_eq!(status(&mut stream), Some(Status::Ok));
                let mut applied = vec![0; size];
                fixture.window.copy_out(offset, &mut applied).unwrap();
                assert!(applied == data, "acknowledged, and so applied");
            }
            let header = request(Direction::Read, version, BASE + offset, size_bytes);
            stream.write_all(&header).unwrap();
            if version == Version::V2 {
                assert_eq!(status(&mut stream), Some(Status::Ok));
            }
            let mut back = vec![0; size];
            stream.read_exact(&mut back).unwrap();
            assert!(back == data, "{size} bytes by {version:?}");
            bytes_moved += size_bytes;
        }
    }
    drop(stream);
    fixture.until(|found| found.door.open == 0);
    for direction in [Direction::Read, Direction::Write] {
        assert_eq!(fixture.count(direction, Outcome::Ok), count(8, bytes_moved));
        assert_eq!(fixture.counters.snapshot().latencies(direction).count(), 8);
    }
    assert_eq!(fixture.counters.snapshot().door.accepted, 1);
}

#[test]
fn a_header_may_come_byte_by_byte() {
    let fixture = Fixture::new();
    let mut stream = fixture.connect();
    stream.set_nodelay(true).unwrap();
    for byte in request(Direction::Read, Version::V2, BASE, 16) {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(status(&mut stream), Some(Status::Ok));
    stream.read_exact(&mut [0; 16]).unwrap();
}

#[test]
fn ranges_that_are_not_inside_one_buffer_are_rejected_and_change_nothing() {
    let fixture = Fixture::new();
    let ranges = [
        (BASE - 1, 1),
        (BASE + LEN, 1),
        (BASE + LEN - 1, 2),
        (BASE, LEN + 1),
        (BASE + 5, u64::MAX),
        (u64::MAX, 2),
        (0, 1),
        (BASE, 0),
    ];
    for (address, size_bytes) in ranges {
        for direction in [Direction::Read, Direction::Write] {
            for version in [Version::V1, Version::V2] {
                let mut stream = fixture.connect();
                let mut message = request(direction, version, address, size_bytes).to_vec();
                // What is on its way while it is rejected must not drown the status.
                if direction == Direction::Write {
                    message.extend(vec![0xee; 1 << 20]);
                }
                let written = stream.write_all(&message);
                if version == Version::V2 {
                    written.unwrap();
                    assert_eq!(status(&mut stream), Some(Status::AddressRejected));
                }
                assert!(closed(&mut stream));
            }
        }
    }
    let rejected = count(2 * ranges.len() as u64, 0);
    for direction in [Direction::Read, Direction::Write] {
        assert_eq!(fixture.count(direction, Outcome::AddressRejected), rejected);
    }
    let mut all = vec![1; LEN as usize];
    fixture.window.copy_out(0, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 0));
}

#[test]
fn buffers_come_and_go_while_connections_stay() {
    let fixture = Fixture::new();
    let mut stream = fixture.connect();
    let mut read = |address, size| {
        let header = request(Direction::Read, Version::V2, address, size);
        stream.write_all(&header).unwrap();
        let found = status(&mut stream)?;
        let mut bytes = vec![0; size as usize];
        (found == Status::Ok).then(|| stream.read_exact(&mut bytes).unwrap())?;
        Some(bytes)
    };
    assert_eq!(read(BASE, 3), Some(vec![0; 3]));
    let other = window(4096);
    other.copy_in(0, b"new").unwrap();
    let buffers = vec![buffer(BASE, &other), buffer(1, &fixture.window)];
    fixture.published.replace(buffers).unwrap();
    assert_eq!(read(BASE, 3), Some(b"new".to_vec()));
    assert_eq!(read(1, 3), Some(vec![0; 3]));
    fixture.published.clear();
    assert_eq!(read(BASE, 3), None);
}

#[test]
fn a_peer_killed_in_the_middle_is_counted_with_what_it_had_written() {
    let fixture = Fixture::new();
    let mut stream = fixture.connect();
    let header = request(Direction::Write, Version::V2, BASE, 1 << 20);
    stream.write_all(&header).unwrap();
    stream.write_all(&[7; 1000]).unwrap();
    drop(stream);
    let gone = |found: &Snapshot| found.count(Direction::Write, Outcome::PeerGone);
    fixture.until(|found| gone(found).operations == 1);
    assert_eq!(gone(&fixture.counters.snapshot()), count(1, 1000));
    let mut written = [0; 1001];
    fixture.window.copy_out(0, &mut written).unwrap();
    assert_eq!((written[999], written[1000]), (7, 0));
    // Half a header and a good-bye is no request at all.
    fixture.connect().write_all(&header[..23]).unwrap();
    fixture.until(|found| found.door.accepted == 2 && found.door.open == 0);
    assert_eq!(fixture.counters.snapshot().malformed, 0);
}

#[test]
fn a_peer_that_does_not_go_on_is_cut_and_others_are_served_meanwhile() {
    let patience = Patience {
        progress: Duration::from_millis(300),
        idle: LONG,
    };
    let fixture = Fixture::with("127.0.0.1", Peers::Any, 100, patience);
    // On each loop one that stops reading and one that stops writing.
    let start = |direction, size| {
        let mut stream = fixture.connect();
        let header = request(direction, Version::V2, BASE, size);
        stream.write_all(&header).unwrap();
        stream
    };
    let _reads_not = [start(Direction::Read, LEN), start(Direction::Read, LEN)];
    let mut writes_not = [start(Direction::Write, 100), start(Direction::Write, 100)];
    let mut half = fixture.connect();
    half.write_all(&[0; 3]).unwrap();
    for _ in 0..2 {
        is_served(&mut fixture.connect());
    }
    assert!(writes_not.iter_mut().all(closed));
    assert!(closed(&mut half));
    fixture.until(|found| {
        let stalled = |direction| found.count(direction, Outcome::Stalled).operations;
        stalled(Direction::Read) == 2 && stalled(Direction::Write) == 2
    });
    assert!(fixture.count(Direction::Read, Outcome::Stalled).bytes < 2 * LEN);
}

#[test]
fn an_idle_connection_ends_when_it_has_been_long_enough() {
    let patience = Patience {
        progress: Duration::from_millis(20),
        idle: Duration::from_millis(100),
    };
    let fixture = Fixture::with("127.0.0.1", Peers::Any, 100, patience);
    let started = Instant::now();
    assert!(closed(&mut fixture.connect()));
    assert!(started.elapsed() >= patience.idle);
    fixture.until(|found| found.door.open == 0);
    for direction in [Direction::Read, Direction::Write] {
        assert_eq!(fixture.count(direction, Outcome::Stalled), count(0, 0));
    }
}

#[test]
fn only_so_many_may_be_connected_and_a_place_that_is_free_again_is_used() {
    let fixture = Fixture::with("127.0.0.1", Peers::Any, 2, Patience::default());
    let first = fixture.connect();
    let _second = fixture.connect();
    fixture.until(|found| found.door.open == 2);
    assert!(closed(&mut fixture.connect()));
    drop(first);
    fixture.until(|found| found.door.open == 1);
    is_served(&mut fixture.connect());
    let door = fixture.counters.snapshot().door;
    assert_eq!((door.accepted, door.refused_for_limit), (3, 1));
}

#[test]
fn peers_outside_the_networks_are_refused_and_counted() {
    let peers = Peers::Networks(vec!["10.0.0.0/8".parse().unwrap()]);
    let fixture = Fixture::with("127.0.0.1", peers, 9, Patience::default());
    assert!(closed(&mut fixture.connect()));
    fixture.until(|found| found.door.refused_peers == 1);
    assert_eq!(fixture.counters.snapshot().door.accepted, 0);
}

#[test]
fn ipv6_and_ipv4_come_to_one_port() {
    let peers = Peers::Networks(vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()]);
    let fixture = Fixture::with("::", peers, 9, Patience::default());
    let port = fixture.address.port();
    assert_ne!(port, 0);
    for host in ["127.0.0.1", "::1"] {
        let address = SocketAddr::new(host.parse().unwrap(), port);
        is_served(&mut connect(address));
    }
    let taken = Listener::bind(SocketAddr::new("::".parse().unwrap(), port)).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
}

#[test]
fn stopping_lets_a_request_end_and_closes_idle_connections() {
    let mut fixture = Fixture::new();
    let mut idle = fixture.connect();
    let mut busy = fixture.connect();
    let header = request(Direction::Write, Version::V2, BASE, 1 << 20);
    busy.write_all(&header).unwrap();
    busy.write_all(&[7; 1000]).unwrap();
    fixture.until(|found| found.door.open == 2);
    fixture.until_applied(999);
    let rest = thread::spawn(move || {
        // The idle one is closed while the busy one is not done.
        assert!(closed(&mut idle));
        busy.write_all(&vec![7; (1 << 20) - 1000]).unwrap();
        assert_eq!(status(&mut busy), Some(Status::Ok));
        assert!(closed(&mut busy));
    });
    assert!(fixture.stop(LONG));
    rest.join().unwrap();
    let done = fixture.count(Direction::Write, Outcome::Ok);
    assert_eq!(done, count(1, 1 << 20));
    assert!(TcpStream::connect(fixture.address).is_err());
}

#[test]
fn stopping_cuts_what_takes_too_long() {
    let mut fixture = Fixture::new();
    let mut busy = fixture.connect();
    let header = request(Direction::Write, Version::V2, BASE, 1 << 20);
    busy.write_all(&header).unwrap();
    busy.write_all(&[1; 10]).unwrap();
    fixture.until_applied(9);
    assert!(!fixture.stop(Duration::from_millis(50)));
    assert!(closed(&mut busy));
    let cut = fixture.count(Direction::Write, Outcome::Stopped);
    assert_eq!(cut, count(1, 10));
}

impl Fixture {
    /// Waits until the byte at `offset` has been written.
    fn until_applied(&self, offset: u64) {
        let mut byte = [0];
        while byte[0] == 0 {
            self.window.copy_out(offset, &mut byte).unwrap();
            thread::yield_now();
        }
    }
}

#[test]
fn thousands_of_random_headers_leave_it_serving() {
    let fixture = Fixture::new();
    // A generator of its own, so that a failure comes again (xorshift).
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..5_000 {
        let mut header = [0; 24];
        for part in header.chunks_mut(8) {
            part.copy_from_slice(&random().to_le_bytes());
        }
        if round % 3 == 0 {
            // Near what would be right.
            header[..8].copy_from_slice(&(random() % 64).to_le_bytes());
            header[8..16].copy_from_slice(&(BASE + LEN - random() % 64).to_le_bytes());
            header[16] = [0, 1, 0x80, 0x81][(random() % 4) as usize];
        }
        let mut stream = fixture.connect();
        stream.write_all(&header).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 8 + 64, "{header:?} got {}", answer.len());
    }
    is_served(&mut fixture.connect());
    assert!(fixture.counters.snapshot().malformed > 1000);
    assert_eq!(fixture.counters.snapshot().door.accepted, 5_001);
}
