//! Whether to touch before registering, and how: a pure function of what was measured.

/// What the choice depends on, for one segment.
#[derive(Debug, Clone, Copy)]
pub struct Situation {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Threads that may touch, at least 1.
    pub threads: usize,
    /// Device domains that it will be registered on.
    pub domains: usize,
    /// All of it will be registered (not so without a back end, or with too little `memlock`).
    pub registers_all: bool,
    /// Its pages are there already, from an earlier process.
    pub kept: bool,
    /// Smaller pages are taken where the kernel refuses these.
    pub falls_back: bool,
}

/// Whether and how to touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touching {
    /// Not at all: registration pays, or the pages are there.
    Skip,
    /// By so many threads.
    Parallel {
        /// Threads.
        threads: usize,
    },
}

/// How one segment's regions meet the domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainOrder {
    /// One domain after another: what untouched memory needs.
    OneAfterAnother,
    /// All at once: only for touched memory.
    AllAtOnce,
}

/// The choice, with its reason in the user's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    /// Whether and how to touch.
    pub touching: Touching,
    /// How the regions meet the domains.
    pub domains: DomainOrder,
    /// Why.
    pub reason: &'static str,
}

/// Below this a touch ahead of registration gains nothing: bytes. (Published are equal times at 4 GB
/// on eight NICs; with `io_uring` touching first is ahead from some tens of MiB on.)
pub const SMALL_BYTES: u64 = 32 << 20;
/// Bytes that a thread touches in one go: a longer populate call stalls every `mmap` of the process.
const LONGEST_CHUNK_BYTES: u64 = 64 << 20;
/// Whole joined pages, and long enough to be worth a call.
const SHORTEST_CHUNK_BYTES: u64 = 4 << 20;

/// Bytes that a thread takes at a time, so that each of `threads` gets several shares.
#[must_use]
pub fn chunk_bytes(size_bytes: u64, threads: usize) -> u64 {
    let share = size_bytes / (threads.max(1) as u64 * 4);
    share
        .next_multiple_of(SHORTEST_CHUNK_BYTES)
        .clamp(SHORTEST_CHUNK_BYTES, LONGEST_CHUNK_BYTES)
}
/// More threads than this saturate no more memory bandwidth (measured on two sockets).
pub const MOST_USEFUL_THREADS: usize = 16;

/// Chooses. Registering untouched memory on several domains at once is never chosen: it was
/// measured at four times the cost of one after another.
#[must_use]
pub fn choose(situation: Situation) -> Strategy {
    let Situation {
        size_bytes,
        threads,
        domains,
        registers_all,
        kept,
        falls_back,
    } = situation;
    let touch = |reason| Strategy {
        touching: Touching::Parallel {
            threads: threads.max(1),
        },
        domains: DomainOrder::AllAtOnce,
        reason,
    };
    if kept {
        return Strategy {
            touching: Touching::Skip,
            domains: DomainOrder::AllAtOnce,
            reason: "its pages were kept by an earlier process",
        };
    }
    if domains == 0 || !registers_all {
        return touch("not all of it will be registered, so registration would not touch it");
    }
    // Registering tells of a refused page only once all the rest is mounted.
    if falls_back {
        return touch("smaller pages can still be taken where the kernel refuses these");
    }
    let skip = |reason| Strategy {
        touching: Touching::Skip,
        domains: DomainOrder::OneAfterAnother,
        reason,
    };
    if threads <= 1 {
        return skip("one thread touches no faster than registration does");
    }
    if size_bytes < SMALL_BYTES {
        return skip("it is small: registration touches it as fast");
    }
    touch("registering touched memory is cheap, and domains can then work at once")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn situation(size_bytes: u64, threads: usize) -> Situation {
        Situation {
            size_bytes,
            threads,
            domains: 8,
            registers_all: true,
            kept: false,
            falls_back: false,
        }
    }

    #[test]
    fn table() {
        let parallel = |threads| Touching::Parallel { threads };
        let cases = [
            (situation(4 * GIB, 4), parallel(4), DomainOrder::AllAtOnce),
            (
                situation(SMALL_BYTES, 2),
                parallel(2),
                DomainOrder::AllAtOnce,
            ),
            (
                situation(SMALL_BYTES - 4096, 16),
                Touching::Skip,
                DomainOrder::OneAfterAnother,
            ),
            (
                situation(160 * GIB, 1),
                Touching::Skip,
                DomainOrder::OneAfterAnother,
            ),
            (
                situation(160 * GIB, 0),
                Touching::Skip,
                DomainOrder::OneAfterAnother,
            ),
            (
                Situation {
                    kept: true,
                    ..situation(160 * GIB, 16)
                },
                Touching::Skip,
                DomainOrder::AllAtOnce,
            ),
            (
                Situation {
                    domains: 0,
                    ..situation(4096, 1)
                },
                parallel(1),
                DomainOrder::AllAtOnce,
            ),
            (
                Situation {
                    falls_back: true,
                    ..situation(2 << 20, 1)
                },
                parallel(1),
                DomainOrder::AllAtOnce,
            ),
            (
                Situation {
                    registers_all: false,
                    ..situation(64 << 20, 2)
                },
                parallel(2),
                DomainOrder::AllAtOnce,
            ),
        ];
        for (situation, touching, domains) in cases {
            let chosen = choose(situation);
            assert_eq!(
                (chosen.touching, chosen.domains),
                (touching, domains),
                "{situation:?}"
            );
            assert!(!chosen.reason.is_empty());
        }
    }

    #[test]
    fn chunks_leave_every_thread_several_shares() {
        let mib = |size: u64, threads| chunk_bytes(size << 20, threads) >> 20;
        assert_eq!(
            [
                mib(64, 2),
                mib(64, 16),
                mib(4096, 2),
                mib(160 << 10, 16),
                mib(1, 0)
            ],
            [8, 4, 64, 64, 4]
        );
    }

    /// What was published (Mooncake, 8 mlx5 NICs, 4 KiB pages), milliseconds.
    const PUBLISHED: &str = include_str!("../../../tests/reference/mount_phases.tsv");

    /// Registration: (touched first, domains at once) gives the total without touching.
    fn published(gb: u64, touched: bool, at_once: bool) -> Option<f64> {
        let word = |flag| if flag { "yes" } else { "no" };
        let key = format!("{gb}\t{}\t{}\t", word(touched), word(at_once));
        let line = PUBLISHED.lines().find(|line| line.starts_with(&key))?;
        line.rsplit('\t').next()?.parse().ok()
    }

    /// Touching with one thread and with the best number; the file tells it in a comment only.
    const TOUCHING: [(u64, f64, f64); 3] = [
        (4, 1884.0, 1869.0),
        (40, 16318.0, 4996.0),
        (160, 64724.0, 17830.0),
    ];

    #[test]
    fn the_choice_is_the_best_of_what_was_published() {
        for (gb, touch_one, touch_best) in TOUCHING {
            for ms in [touch_one, touch_best] {
                assert!(
                    PUBLISHED.contains(&format!("{ms}")),
                    "{ms} is not in the file"
                );
            }
            let serial = published(gb, false, false).unwrap();
            let at_once = published(gb, false, true).unwrap_or(f64::INFINITY);
            let touched = published(gb, true, true).unwrap();
            for threads in [1, 16] {
                let touch = if threads == 1 { touch_one } else { touch_best };
                let chosen = choose(situation(gb * 1_000_000_000, threads));
                let cost = match (chosen.touching, chosen.domains) {
                    (Touching::Skip, DomainOrder::OneAfterAnother) => serial,
                    (Touching::Skip, DomainOrder::AllAtOnce) => at_once,
                    (Touching::Parallel { .. }, _) => touch + touched,
                };
                let best = serial.min(at_once).min(touch + touched);
                assert!(
                    cost <= best * 1.15,
                    "{gb} GB, {threads} threads: {cost} ms, best {best}"
                );
                if threads == 16 && gb >= 40 {
                    assert_eq!(cost, best, "{gb} GB");
                }
            }
        }
    }

    #[test]
    fn untouched_memory_never_meets_several_domains_at_once() {
        for size_bytes in [4096, GIB / 2, GIB, 100 * GIB] {
            for threads in [1, 2, 64] {
                for registers_all in [true, false] {
                    let chosen = choose(Situation {
                        registers_all,
                        ..situation(size_bytes, threads)
                    });
                    if chosen.touching == Touching::Skip {
                        assert_eq!(chosen.domains, DomainOrder::OneAfterAnother);
                    }
                }
            }
        }
    }
}
