//! The fitted numbers, each with its meaning and its unit.

use serde::Serialize;

/// The unpublished sizes of the 182 GPU buffers of a rank, as an assumption with two numbers.
///
/// Published are only their count and their range, 2.5 KiB to 391 MiB. Assumed are two pools: the
/// large one holds `large_buffers` of 391 MiB, the sizes of the other fall in equal steps from
/// `small_pool_largest_mib` to 2.5 KiB. Grouped by pool means the small pool first, then the large
/// one, each in descending order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sizes {
    /// Buffers in the large pool.
    pub large_buffers: u32,
    /// Size of the largest buffer of the small pool, MiB.
    pub small_pool_largest_mib: f64,
}

/// How the cost of single registrations scatters around its mean. Not fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Spread {
    /// Every registration costs its mean.
    None,
    /// Exponential with the mean 1, drawn from a low-discrepancy sequence over (buffer, NIC) that is
    /// shifted for each rank: a short run has the mean of a long one.
    Exponential,
}

impl Spread {
    /// The factor by which registration number `index` of `rank` differs from its mean cost.
    #[must_use]
    pub fn factor(self, rank: usize, index: usize) -> f64 {
        // The golden ratio and the plastic number: the least regular steps in one and two dimensions.
        const STEP: f64 = 0.618_033_988_749_894_9;
        const SHIFT: f64 = 0.754_877_666_246_692_7;
        match self {
            Self::None => 1.0,
            Self::Exponential => {
                let uniform = (0.5 + rank as f64 * SHIFT + index as f64 * STEP).fract();
                -(1.0 - uniform).ln()
            }
        }
    }
}

/// The eight numbers behind all p5 tables.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Fixed cost of one registration in one domain, seconds.
    pub fixed_seconds: f64,
    /// Cost of a device registration for its own bytes, in one domain, seconds per GiB.
    pub device_seconds_per_gib: f64,
    /// Cost of a device registration for the device bytes that its domain already holds, seconds
    /// per GiB. Times 32 NICs this is the published k of about 0.26 s/GiB.
    pub accumulation_seconds_per_gib: f64,
    /// Cost of a host registration for its own pages, in one domain, nanoseconds per page.
    pub host_nanoseconds_per_page: f64,
    /// Share of every registration that runs under the lock of its process, 0 to 1.
    pub serial_share: f64,
    /// With `n` threads in flight on `c < n` hardware threads each runs at `(c / n)` to this power.
    /// At 1 they share the hardware threads and nothing is lost or gained; below 1 some of those that
    /// wait sleep instead of spinning; above 1 switching costs as well.
    pub oversubscription_exponent: f64,
    /// The assumed buffer sizes: two more numbers.
    pub sizes: Sizes,
    /// The scatter: a choice, not a number.
    pub spread: Spread,
}

impl Parameters {
    /// The values for p5.48xlarge, as `examples/fit.rs` prints them, rounded.
    pub const P5: Self = Self {
        fixed_seconds: 0.002_01,
        device_seconds_per_gib: 0.010_03,
        accumulation_seconds_per_gib: 0.008_455,
        host_nanoseconds_per_page: 192.8,
        serial_share: 0.1413,
        oversubscription_exponent: 0.8865,
        sizes: Sizes {
            large_buffers: 22,
            small_pool_largest_mib: 120.5,
        },
        spread: Spread::Exponential,
    };
}

/// Everything that is fitted: the p5 numbers and the one of p6-b300.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Model {
    /// Of p5.48xlarge, used for p6-b300 too.
    pub parameters: Parameters,
    /// Share of p6-b300's 192 hardware threads that registration gets, as if the server that started
    /// with it kept the others busy. A guess: nobody has verified why 8 a rank is best there.
    pub p6_usable_share: f64,
}

impl Model {
    /// The fitted values.
    pub const FITTED: Self = Self {
        parameters: Parameters::P5,
        p6_usable_share: 0.25,
    };
}
