//! Headers of requests and responses: little endian, no padding.

/// Length of a request's header, bytes.
pub const REQUEST_HEADER_BYTES: usize = 20;
/// Length of a response's header, bytes.
pub const RESPONSE_HEADER_BYTES: usize = 16;
/// Largest body that is sent or accepted, attachment included, bytes.
pub const MAX_BODY_BYTES: u32 = 4 << 20;

const MAGIC: u8 = 21;
const VERSION: u8 = 0;

/// Bytes that are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not the protocol.
    #[error("the frame starts with {found:#04x}, not {MAGIC:#04x}: the peer is no Mooncake master")]
    Magic {
        /// The first byte.
        found: u8,
    },
    /// Another version of it.
    #[error("the frame's version is {found}, not {VERSION}")]
    Version {
        /// The version.
        found: u8,
    },
    /// Too long.
    #[error("a body of {bytes} bytes; at most {MAX_BODY_BYTES} are taken")]
    TooLong {
        /// Body and attachment, bytes.
        bytes: u64,
    },
}

/// Header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Number of the request on its connection; the answer has the same.
    pub sequence: u32,
    /// Which function is called.
    pub function: u32,
    /// Length of the body, bytes.
    pub body_bytes: u32,
    /// Length of what follows the body, bytes.
    pub attachment_bytes: u32,
}

/// Header of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// 0: the function was called. Otherwise it was not, and the body says why.
    pub error: u8,
    /// The request's number.
    pub sequence: u32,
    /// Length of the body, bytes.
    pub body_bytes: u32,
    /// Length of what follows the body, bytes.
    pub attachment_bytes: u32,
}

impl RequestHeader {
    /// The header as sent.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_HEADER_BYTES] {
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes[0] = MAGIC;
        bytes[1] = VERSION;
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.function.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.attachment_bytes.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameError`] where it is none, or announces more than [`MAX_BODY_BYTES`].
    pub fn decode(bytes: &[u8; REQUEST_HEADER_BYTES]) -> Result<Self, FrameError> {
        check_start(bytes[0], bytes[1])?;
        let header = Self {
            sequence: word(bytes, 4),
            function: word(bytes, 8),
            body_bytes: word(bytes, 12),
            attachment_bytes: word(bytes, 16),
        };
        check_length(header.body_bytes, header.attachment_bytes)?;
        Ok(header)
    }
}

impl ResponseHeader {
    /// The header as sent.
    #[must_use]
    pub fn encode(&self) -> [u8; RESPONSE_HEADER_BYTES] {
        let mut bytes = [0; RESPONSE_HEADER_BYTES];
        bytes[0] = MAGIC;
        bytes[1] = VERSION;
        bytes[2] = self.error;
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.attachment_bytes.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameError`] where it is none, or announces more than [`MAX_BODY_BYTES`].
    pub fn decode(bytes: &[u8; RESPONSE_HEADER_BYTES]) -> Result<Self, FrameError> {
        check_start(bytes[0], bytes[1])?;
        let header = Self {
            error: bytes[2],
            sequence: word(bytes, 4),
            body_bytes: word(bytes, 8),
            attachment_bytes: word(bytes, 12),
        };
        check_length(header.body_bytes, header.attachment_bytes)?;
        Ok(header)
    }
}

fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    let mut word = [0; 4];
    for (to, from) in word.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    u32::from_le_bytes(word)
}

fn check_start(magic: u8, version: u8) -> Result<(), FrameError> {
    if magic != MAGIC {
        return Err(FrameError::Magic { found: magic });
    }
    if version != VERSION {
        return Err(FrameError::Version { found: version });
    }
    Ok(())
}

fn check_length(body_bytes: u32, attachment_bytes: u32) -> Result<(), FrameError> {
    let bytes = u64::from(body_bytes) + u64::from(attachment_bytes);
    if bytes > u64::from(MAX_BODY_BYTES) {
        return Err(FrameError::TooLong { bytes });
    }
    Ok(())
}
