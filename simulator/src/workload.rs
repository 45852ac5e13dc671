//! What a rank registers, and in which order.

use serde::Serialize;

use crate::parameters::Sizes;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Bytes of the largest published GPU buffers. Written "391 MB": 24 of them are given as 9.17 GiB.
const LARGE_BYTES: u64 = 391 * MIB;
const SMALLEST_BYTES: u64 = 2 * KIB + KIB / 2;

/// Where a buffer lies, as far as registration can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Memory {
    /// Pages of this size are pinned one by one; nothing accumulates.
    Host {
        /// Size of a page, bytes.
        page_bytes: u64,
    },
    /// Memory of a GPU: the cost grows with what the domain already holds.
    Device,
}

/// The order in which workers take the buffers of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Order {
    /// Largest first.
    Descending,
    /// Pool by pool, descending in each.
    GroupedByPool,
    /// Smallest first.
    Ascending,
}

/// One buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Buffer {
    /// Its size, bytes.
    pub bytes: u64,
    /// The allocator's pool it belongs to; pools register by number.
    pub pool: u32,
}

/// What each rank registers; all ranks register the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// The buffers of one rank.
    pub buffers: Vec<Buffer>,
    /// Where all of them lie.
    pub memory: Memory,
    /// The order in which they are taken.
    pub order: Order,
}

impl Workload {
    /// The replay of p5.48xlarge and, for want of anything published, of p6-b300: 182 GPU buffers.
    #[must_use]
    pub fn p5_gpu(sizes: &Sizes, order: Order) -> Self {
        const COUNT: u32 = 182;
        let large = sizes.large_buffers.min(COUNT);
        let mut buffers = repeated(LARGE_BYTES, 1, large);
        buffers.extend(falling(sizes.small_pool_largest_mib, COUNT - large));
        Self {
            buffers,
            memory: Memory::Device,
            order,
        }
    }

    /// The NIC table's: 48 GPU buffers of 391 MiB.
    #[must_use]
    pub fn nic_table() -> Self {
        Self {
            buffers: repeated(LARGE_BYTES, 0, 48),
            memory: Memory::Device,
            order: Order::Descending,
        }
    }

    /// The accumulation table's: 24 GPU buffers of 2.79 MiB and 24 of 391 MiB.
    #[must_use]
    pub fn accumulation(order: Order) -> Self {
        let mut buffers = repeated(LARGE_BYTES, 1, 24);
        buffers.extend(repeated(279 * MIB / 100, 0, 24));
        Self {
            buffers,
            memory: Memory::Device,
            order,
        }
    }

    /// The replay of `p5_host`: 128 buffers of 2 GiB in 4 KiB pages, the same memory for every rank.
    #[must_use]
    pub fn p5_host() -> Self {
        Self {
            buffers: repeated(2 * GIB, 0, 128),
            memory: Memory::Host {
                page_bytes: 4 * KIB,
            },
            order: Order::Descending,
        }
    }

    /// The sizes in bytes, in the order in which workers take them.
    #[must_use]
    pub fn ordered_bytes(&self) -> Vec<u64> {
        let mut buffers = self.buffers.clone();
        buffers.sort_by_key(|buffer| std::cmp::Reverse(buffer.bytes));
        match self.order {
            Order::Descending => {}
            Order::GroupedByPool => buffers.sort_by_key(|buffer| buffer.pool),
            Order::Ascending => buffers.reverse(),
        }
        buffers.iter().map(|buffer| buffer.bytes).collect()
    }

    /// Bytes of one rank.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }
}

fn repeated(bytes: u64, pool: u32, count: u32) -> Vec<Buffer> {
    (0..count).map(|_| Buffer { bytes, pool }).collect()
}

/// The small pool: `count` sizes in equal steps down to the smallest.
fn falling(largest_mib: f64, count: u32) -> impl Iterator<Item = Buffer> {
    let largest = largest_mib * MIB as f64;
    let smallest = SMALLEST_BYTES as f64;
    let steps = f64::from(count.saturating_sub(1).max(1));
    (0..count).map(move |index| {
        let left = 1.0 - f64::from(index) / steps;
        let bytes = (smallest + (largest - smallest) * left) as u64;
        Buffer { bytes, pool: 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;

    #[test]
    fn published_workloads() {
        let sizes = Parameters::P5.sizes;
        for (workload, count, smallest, largest) in [
            (
                Workload::p5_gpu(&sizes, Order::Ascending),
                182,
                2_560,
                391 << 20,
            ),
            (Workload::nic_table(), 48, 391 << 20, 391 << 20),
            (
                Workload::accumulation(Order::Ascending),
                48,
                2_925_527,
                391 << 20,
            ),
            (Workload::p5_host(), 128, 2 << 30, 2 << 30),
        ] {
            let bytes = workload.ordered_bytes();
            assert_eq!(bytes.len(), count);
            assert_eq!(bytes.iter().min(), Some(&smallest));
            assert_eq!(bytes.iter().max(), Some(&largest));
        }
    }

    #[test]
    fn orders() {
        let buffers = [(5, 1), (9, 0), (1, 1), (3, 0)]
            .map(|(bytes, pool)| Buffer { bytes, pool })
            .to_vec();
        for (order, expected) in [
            (Order::Descending, [9, 5, 3, 1]),
            (Order::GroupedByPool, [9, 3, 5, 1]),
            (Order::Ascending, [1, 3, 5, 9]),
        ] {
            let workload = Workload {
                buffers: buffers.clone(),
                memory: Memory::Device,
                order,
            };
            assert_eq!(workload.ordered_bytes(), expected, "{order:?}");
            assert_eq!(workload.bytes(), 18);
        }
    }
}
