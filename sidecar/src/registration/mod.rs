//! Registration: which back end, which regions, how many at once.

pub mod backend;
pub mod cap;
pub mod items;
