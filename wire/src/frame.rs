//! The frames of the TCP data path: a request of 24 bytes, and version 2's status of 8 bytes.
//!
//! | | version 1 | version 2 |
//! |---|---|---|
//! | read | request; then exactly `size` bytes come back | request; a status, then `size` bytes |
//! | write | request and bytes; no answer | request and bytes; a status once all are applied |
//!
//! One request is in flight per connection; the next may follow on the same one. All numbers are
//! little endian.

/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 24;

/// Bytes of a status.
pub const STATUS_BYTES: usize = 8;

/// In the opcode: the request is of version 2.
const VERSION_2: u8 = 0x80;

/// The upper half of a status.
const STATUS_MAGIC: u32 = 0x4D43_5456;

/// Which way the bytes go, as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the target to the client.
    Read,
    /// From the client to the target.
    Write,
}

impl Direction {
    /// Its name, fit for a metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The version of the frames: whether statuses are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// Without statuses: a bad request ends the connection, a write is not acknowledged.
    V1,
    /// With statuses.
    V2,
}

/// The header of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Which way the bytes go.
    pub direction: Direction,
    /// Whether a status is awaited.
    pub version: Version,
    /// First address: one published in a descriptor, plus an offset.
    pub address: u64,
    /// Bytes to move. A target rejects 0; a client completes it without asking.
    pub size_bytes: u64,
}

/// Why 24 bytes are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The opcode, without the bit of version 2, is neither 0 (read) nor 1 (write).
    #[error("opcode {0:#04x} is neither a read (0x00, 0x80) nor a write (0x01, 0x81)")]
    Opcode(u8),
}

impl Request {
    /// The request as it travels; the padding is zero.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&self.size_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        let operation = match self.direction {
            Direction::Read => 0,
            Direction::Write => 1,
        };
        bytes[16] = match self.version {
            Version::V1 => operation,
            Version::V2 => operation | VERSION_2,
        };
        bytes
    }

    /// Reads a request; its padding may hold anything.
    ///
    /// # Errors
    /// [`RequestError::Opcode`].
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, RequestError> {
        let direction = match bytes[16] & !VERSION_2 {
            0 => Direction::Read,
            1 => Direction::Write,
            _ => return Err(RequestError::Opcode(bytes[16])),
        };
        let version = if bytes[16] & VERSION_2 == 0 {
            Version::V1
        } else {
            Version::V2
        };
        Ok(Self {
            direction,
            version,
            address: u64_at(bytes, 8),
            size_bytes: u64_at(bytes, 0),
        })
    }
}

/// What a target of version 2 answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done, or for a read: the bytes follow.
    Ok,
    /// The range is not inside one published buffer. The connection ends.
    AddressRejected,
}

/// Why 8 bytes are no status of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// The upper half is not the mark of version 2: the peer speaks something else.
    #[error("{0:#010x} is not the mark of a version 2 status ({STATUS_MAGIC:#010x})")]
    Magic(u32),
    /// The lower half is no code that is known.
    #[error("status {0} is neither 0 (OK) nor 1 (address rejected)")]
    Code(u32),
}

impl Status {
    /// The status as it travels.
    #[must_use]
    pub fn encode(self) -> [u8; STATUS_BYTES] {
        let code: u32 = match self {
            Self::Ok => 0,
            Self::AddressRejected => 1,
        };
        (u64::from(STATUS_MAGIC) << 32 | u64::from(code)).to_le_bytes()
    }

    /// Reads a status.
    ///
    /// # Errors
    /// [`StatusError`].
    pub fn decode(bytes: &[u8; STATUS_BYTES]) -> Result<Self, StatusError> {
        let whole = u64::from_le_bytes(*bytes);
        let (magic, code) = ((whole >> 32) as u32, whole as u32);
        if magic != STATUS_MAGIC {
            return Err(StatusError::Magic(magic));
        }
        match code {
            0 => Ok(Self::Ok),
            1 => Ok(Self::AddressRejected),
            other => Err(StatusError::Code(other)),
        }
    }
}

fn u64_at(bytes: &[u8; REQUEST_BYTES], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As seen on the wire from the wheel's client.
    const READ_2: [u8; 24] = [
        0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x70, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn the_bytes_are_those_of_the_wheel() {
        let read = Request {
            direction: Direction::Read,
            version: Version::V2,
            address: 0x7000_0000_0000,
            size_bytes: 16,
        };
        assert_eq!(read.encode(), READ_2);
        assert_eq!(Request::decode(&READ_2), Ok(read));
        assert_eq!(Status::Ok.encode(), *b"\0\0\0\0VTCM");
        assert_eq!(Status::AddressRejected.encode(), *b"\x01\0\0\0VTCM");
    }

    #[test]
    fn padding_means_nothing_and_each_opcode_what_it_says() {
        for (opcode, want) in [
            (0x00, Some((Direction::Read, Version::V1))),
            (0x01, Some((Direction::Write, Version::V1))),
            (0x80, Some((Direction::Read, Version::V2))),
            (0x81, Some((Direction::Write, Version::V2))),
            (0x02, None),
            (0x82, None),
            (0xff, None),
        ] {
            let mut bytes = READ_2;
            bytes[16] = opcode;
            bytes[17..].fill(0xa5);
            let found = Request::decode(&bytes);
            match want {
                Some(want) => {
                    assert_eq!(
                        found.map(|found| (found.direction, found.version)),
                        Ok(want)
                    );
                    assert_eq!(
                        found.map(|found| (found.address, found.size_bytes)),
                        Ok((0x7000_0000_0000, 16))
                    );
                }
                None => assert_eq!(found, Err(RequestError::Opcode(opcode))),
            }
        }
    }

    #[test]
    fn what_is_no_status_says_why() {
        assert_eq!(
            Status::decode(b"HTTP/1.1"),
            Err(StatusError::Magic(u32::from_le_bytes(*b"/1.1")))
        );
        assert_eq!(Status::decode(b"\x02\0\0\0VTCM"), Err(StatusError::Code(2)));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes: [u8; 24], status: [u8; 8]) {
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(&request.encode()[..17], &bytes[..17]);
            }
            if let Ok(found) = Status::decode(&status) {
                prop_assert_eq!(found.encode(), status);
            }
        }

        #[test]
        fn a_request_survives_the_wire(address: u64, size_bytes: u64, write: bool, second: bool) {
            let request = Request {
                direction: if write { Direction::Write } else { Direction::Read },
                version: if second { Version::V2 } else { Version::V1 },
                address,
                size_bytes,
            };
            prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
    }
}
