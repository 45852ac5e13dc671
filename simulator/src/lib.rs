//! What registering memory costs on a node, as a discrete-event model: ranks × workers × NIC
//! domains, fitted once to the tables that production published.
//!
//! The mechanisms, each with the table that shows it:
//!
//! - A registration costs a fixed part, a part for its own bytes or pages, and, for device memory,
//!   a part for every device byte that its domain already holds (`registration_accumulation`,
//!   `registration_nics`). The last one is why ascending order wins (`registration_p5_order`).
//! - It looks at what is registered when it starts and is itself counted when it ends. Workers that
//!   run side by side do not see each other: one thread a buffer therefore hides the order and pays
//!   no accumulation, only contention. (Counting them from their start, refitted, doubles the order
//!   effect of unbounded caps and is 200 % off in one cell, so it is not what happens on 32 NICs; on
//!   few NICs and many workers nothing was measured, and [`unmeasured`] says so.)
//! - It ends under a lock that all threads of its process share, so a rank stops gaining at about
//!   eight workers however many hardware threads there are (`registration_p5_cores`: 4 and 8 ranks
//!   take the same time at the same cap).
//! - A waiting thread spins. Every thread in flight takes its share of the hardware threads, and
//!   beyond one thread for each of those all slow down (`registration_p5_cores`,
//!   `registration_platforms`).
//!
//! What the fit does not count. The eight numbers are fitted without the held-out cells, but the
//! mechanisms were not chosen blind: of some ten ways to take the lock and to count what is
//! registered, four shapes of the buffer sizes and three of the spread, this one was kept with all
//! cells in view. The replays behind `registration_platforms` are assumed (8 ranks of 128 host
//! buffers; on p6-b300 the p5 buffers, ascending). `p5_host` at cap 4 is beyond reach and was cut off
//! in the fit.
//!
//! No clock and no random number is read: the same input gives the same answer everywhere.
#![forbid(unsafe_code)]

mod compare;
mod engine;
mod factor;
mod parameters;
mod report;
mod svg;
mod sweep;
mod tables;
mod workload;

pub use compare::{Basis, Cell, compare, compare_with};
pub use engine::{Cap, Node, Outcome, simulate};
pub use factor::{FactorScore, Setting, best_factor, factor_scores, p5_settings};
pub use parameters::{Model, Parameters, Sizes, Spread};
pub use report::{BestCap, Report};
pub use sweep::{
    best_cap, modelled_registrations, sweep, sweep_cost_seconds, sweep_with, unmeasured,
};
pub use tables::{Table, tables};
pub use workload::{Buffer, Memory, Order, Workload};
