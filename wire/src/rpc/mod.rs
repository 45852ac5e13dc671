//! Calls to Mooncake's master: frames, bodies by release, answers.
//!
//! A frame is a fixed header and a body ([`frame`]). A body starts with the hash and the text of its
//! types, which change with every release that changes a struct ([`pack`]); what they are for which
//! release is a table, recorded from real traffic ([`releases`]).

pub mod frame;
pub mod pack;
pub mod releases;

#[cfg(test)]
mod tests;

pub use frame::{FrameError, RequestHeader, ResponseHeader};
pub use pack::{DecodeError, EncodeError};
pub use releases::{Call, Probe, Release, Releases, TableError};

/// A 128-bit id, as the master's structs hold it: two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Id(pub u64, pub u64);

impl Id {
    /// The id of the part `index` of what has this id: the same part has the same id in every process.
    #[must_use]
    pub fn part(self, index: u64) -> Self {
        Self(self.0, self.1.wrapping_add(index))
    }
}

/// 32 hexadecimal digits.
impl std::fmt::Display for Id {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:016x}{:016x}", self.0, self.1)
    }
}

/// A text that is no [`Id`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no id; an id is 32 hexadecimal digits")]
pub struct NoId(pub String);

impl std::str::FromStr for Id {
    type Err = NoId;

    fn from_str(text: &str) -> Result<Self, NoId> {
        let no_id = || NoId(text.chars().take(64).collect());
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(no_id());
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| no_id())?;
        let low = u64::try_from(number & u128::from(u64::MAX)).map_err(|_| no_id())?;
        let high = u64::try_from(number >> 64).map_err(|_| no_id())?;
        Ok(Self(high, low))
    }
}

/// A segment, as it is mounted at the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its id: the same segment mounted again has the same.
    pub id: Id,
    /// Its name, for people and for `preferred_segment`.
    pub name: String,
    /// The address that its descriptor publishes.
    pub base: u64,
    /// Its length, bytes.
    pub size_bytes: u64,
    /// `host:port` of the handshake endpoint, or the segment's name in a metadata server.
    pub te_endpoint: String,
    /// `tcp`, `rdma`, `efa`.
    pub protocol: String,
    /// The host, by which clients prefer what is near; empty for none. Releases without the field
    /// leave it out.
    pub host_id: String,
}

/// What the master thinks of a client that says that it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientStatus {
    /// It knows the client and its segments.
    Known,
    /// It does not: the segments are to be mounted again.
    MountAgain,
    /// A number that no release that is known sends.
    Other(i32),
}

/// The answer to a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pong {
    /// Grows with every change of who leads, where several masters run.
    pub view: i64,
    /// Whether the client is known.
    pub status: ClientStatus,
}

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// Done.
    Done(T),
    /// The call was understood and refused, with this error code of the master's.
    Refused(i32),
}
