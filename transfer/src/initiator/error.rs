//! How an operation ends when it does not succeed.

use std::io;
use std::time::Duration;

/// Why an operation did not succeed. Whatever it is, the operation touches no memory any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The remote range lies in none of the buffers that the peer published.
    #[error(
        "{length_bytes} bytes at remote address {address:#x} lie in no buffer that the peer published; take addresses from its descriptor"
    )]
    OutsideBuffers {
        /// Remote address.
        address: u64,
        /// Length, bytes.
        length_bytes: u64,
    },
    /// Queue and admissions of this peer are full.
    #[error(
        "{queued} operations are queued for this peer and {pending} wait for admission, which is the bound; wait for some to end"
    )]
    QueueFull {
        /// Operations in the queue.
        queued: usize,
        /// Operations that wait for admission.
        pending: usize,
    },
    /// It waited for a place in the queue for too long.
    #[error(
        "no place in this peer's queue within {} s; its lanes are slower than what is asked of them",
        waited.as_secs_f64()
    )]
    AdmissionTimedOut {
        /// How long it may wait.
        waited: Duration,
    },
    /// The peer did not answer a moment ago and is left alone for a while.
    #[error(
        "the peer could not be reached a moment ago ({kind}); it is tried again {} s after that",
        cool_down.as_secs_f64()
    )]
    CoolingDown {
        /// What connecting met.
        kind: io::ErrorKind,
        /// How long a peer is left alone.
        cool_down: Duration,
    },
    /// No connection to the peer.
    #[error("the peer's data port can't be reached: {kind}")]
    Unreachable {
        /// What connecting met.
        kind: io::ErrorKind,
    },
    /// The peer says that the range is none of its.
    #[error(
        "the peer rejected {length_bytes} bytes at address {address:#x}; it may have published other buffers since its descriptor was read"
    )]
    Rejected {
        /// Remote address.
        address: u64,
        /// Length, bytes.
        length_bytes: u64,
    },
    /// The connection broke in the middle of it.
    #[error("the connection broke: {kind}")]
    Broken {
        /// What the socket met.
        kind: io::ErrorKind,
    },
    /// The peer's answer is no status frame.
    #[error("the peer's answer {status:#018x} is no status; is its data port Mooncake's?")]
    Malformed {
        /// The eight bytes, little endian.
        status: u64,
    },
    /// Not a byte went either way for too long.
    #[error("no byte went either way for {} s", waited.as_secs_f64())]
    Stalled {
        /// How long that may last.
        waited: Duration,
    },
    /// Its caller cancelled it.
    #[error("cancelled")]
    Cancelled,
    /// The client was shut down.
    #[error("the client was shut down")]
    ShutDown,
    /// The task that moved it is gone.
    #[error("the task that moved it ended without an answer")]
    Abandoned,
}

/// An operation's end.
pub type Outcome = Result<(), TransferError>;

impl TransferError {
    /// All words that [`TransferError::reason`] can be.
    pub const REASONS: [&'static str; 12] = [
        "OutsideBuffers",
        "QueueFull",
        "AdmissionTimedOut",
        "CoolingDown",
        "Unreachable",
        "Rejected",
        "Broken",
        "Malformed",
        "Stalled",
        "Cancelled",
        "ShutDown",
        "Abandoned",
    ];

    /// The kind in one word, for labels.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        Self::REASONS[self.kind()]
    }

    /// The place of the kind among [`TransferError::REASONS`].
    pub(super) fn kind(&self) -> usize {
        match self {
            Self::OutsideBuffers { .. } => 0,
            Self::QueueFull { .. } => 1,
            Self::AdmissionTimedOut { .. } => 2,
            Self::CoolingDown { .. } => 3,
            Self::Unreachable { .. } => 4,
            Self::Rejected { .. } => 5,
            Self::Broken { .. } => 6,
            Self::Malformed { .. } => 7,
            Self::Stalled { .. } => 8,
            Self::Cancelled => 9,
            Self::ShutDown => 10,
            Self::Abandoned => 11,
        }
    }
}
