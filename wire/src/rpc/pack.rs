//! Bodies: a hash of the types, one byte that tells widths, the types as text, then the values.
//!
//! The byte of widths: bits 0 and 1 how wide the body's length is that follows it (0: none), bit 2
//! that the types follow, bits 3 and 4 how wide every length and count among the values is.

use super::frame::MAX_BODY_BYTES;

/// Longest text of types that is looked for, bytes.
const MAX_TYPES_BYTES: usize = 4 << 10;
const HAS_TYPES: u8 = 1 << 2;
const WIDTH_SHIFT: u32 = 3;

/// Values that do not fit in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Too much for one call.
    #[error(
        "a call of {bytes} bytes; at most {MAX_BODY_BYTES} fit: mount fewer segments, or shorten their names"
    )]
    TooLong {
        /// Length of the body, bytes.
        bytes: usize,
    },
}

/// A body that is not what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It ends too early.
    #[error("the answer ends after {bytes} bytes, in the middle of {what}")]
    Short {
        /// Its length, bytes.
        bytes: usize,
        /// What was being read.
        what: &'static str,
    },
    /// It has other types.
    #[error(
        "the answer has types {found} where {expected} were expected: the master is of another release"
    )]
    Types {
        /// Hash and types found, hexadecimal.
        found: String,
        /// Those expected.
        expected: String,
    },
    /// Its widths are none.
    #[error("the answer's byte of widths is {found:#04x}, which says nothing known")]
    Widths {
        /// The byte.
        found: u8,
    },
    /// The length that it tells is not its own.
    #[error("the answer says that it has {told} bytes and has {bytes}")]
    Length {
        /// The length that it tells, bytes.
        told: u64,
        /// Its length, bytes.
        bytes: usize,
    },
    /// A value that cannot be.
    #[error("the answer's {what} is {found}")]
    Value {
        /// Which value.
        what: &'static str,
        /// What it is.
        found: String,
    },
}

/// What a body starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    /// Hash of the types.
    pub hash: [u8; 4],
    /// The types, their closing zero included.
    pub types: Vec<u8>,
    /// Whether the body's length is told: so it is where a struct may grow fields.
    pub is_sized: bool,
}

/// A value of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Number(u64),
    Text(&'a str),
    Count(usize),
    Raw(&'a [u8]),
}

impl Prefix {
    /// A body with these values.
    pub(crate) fn encode(&self, values: &[Value<'_>]) -> Result<Vec<u8>, EncodeError> {
        let width = width_of(values);
        let value_bytes: usize = values.iter().map(|value| value.len(width)).sum();
        let plain = (self.hash.len() + 1 + self.types.len()).saturating_add(value_bytes);
        let size_width = match (self.is_sized, plain + 2) {
            (false, _) => 0,
            (true, total) if total <= usize::from(u16::MAX) => 2,
            (true, _) => 4,
        };
        let total = plain + size_width;
        let Some(told) = u32::try_from(total)
            .ok()
            .filter(|told| *told <= MAX_BODY_BYTES)
        else {
            return Err(EncodeError::TooLong { bytes: total });
        };
        let size_code = u8::try_from(size_width / 2).unwrap_or_default();
        let mut body = Vec::with_capacity(total);
        body.extend_from_slice(&self.hash);
        body.push(size_code | HAS_TYPES | (width.code() << WIDTH_SHIFT));
        body.extend(told.to_le_bytes().iter().take(size_width));
        body.extend_from_slice(&self.types);
        for value in values {
            match value {
                Value::Number(number) => body.extend_from_slice(&number.to_le_bytes()),
                Value::Text(text) => {
                    width.put(text.len(), &mut body);
                    body.extend_from_slice(text.as_bytes());
                }
                Value::Count(count) => width.put(*count, &mut body),
                Value::Raw(bytes) => body.extend_from_slice(bytes),
            }
        }
        Ok(body)
    }

    /// The values of a body that starts so.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub(crate) fn decode<'a>(&self, body: &'a [u8]) -> Result<Reader<'a>, DecodeError> {
        let (found, reader) = Self::split(body)?;
        // Whether the length is told may differ: that is how a release that grew fields differs.
        if (found.hash, &found.types) != (self.hash, &self.types) {
            return Err(DecodeError::Types {
                found: found.told(),
                expected: self.told(),
            });
        }
        Ok(reader)
    }

    /// Takes a body apart: what it starts with, and its values.
    ///
    /// # Errors
    /// [`DecodeError`] where it is no body.
    pub fn split(body: &[u8]) -> Result<(Self, Reader<'_>), DecodeError> {
        let mut reader = Reader {
            rest: body,
            width: 1,
            bytes: body.len(),
        };
        let mut hash = [0; 4];
        hash.copy_from_slice(reader.take(4, "the hash of its types")?);
        let [widths] = *reader.take(1, "its widths")? else {
            return Err(reader.short("its widths"));
        };
        if widths & HAS_TYPES == 0 || widths >> (WIDTH_SHIFT + 2) != 0 {
            return Err(DecodeError::Widths { found: widths });
        }
        let size_width = [0, 2, 4, 8][usize::from(widths & 3)];
        if size_width != 0 {
            let told = reader.number(size_width, "its length")?;
            if u64::try_from(body.len()) != Ok(told) {
                let bytes = body.len();
                return Err(DecodeError::Length { told, bytes });
            }
        }
        let end = reader
            .rest
            .iter()
            .take(MAX_TYPES_BYTES)
            .position(|byte| *byte == 0);
        let Some(end) = end else {
            return Err(reader.short("its types"));
        };
        let types = reader.take(end + 1, "its types")?.to_vec();
        reader.width = 1 << (widths >> WIDTH_SHIFT & 3);
        let is_sized = size_width != 0;
        Ok((
            Self {
                hash,
                types,
                is_sized,
            },
            reader,
        ))
    }

    fn told(&self) -> String {
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        format!("{} {}", hex(&self.hash), hex(&self.types))
    }
}

/// How wide lengths are.
#[derive(Debug, Clone, Copy)]
enum Width {
    One,
    Two,
    Four,
}

impl Width {
    fn code(self) -> u8 {
        match self {
            Self::One => 0,
            Self::Two => 1,
            Self::Four => 2,
        }
    }

    fn bytes(self) -> usize {
        1 << self.code()
    }

    fn put(self, length: usize, body: &mut Vec<u8>) {
        // The width was chosen so that every length fits.
        body.extend(length.to_le_bytes().iter().take(self.bytes()));
    }
}

fn width_of(values: &[Value<'_>]) -> Width {
    let longest = values.iter().map(|value| match value {
        Value::Text(text) => text.len(),
        Value::Count(count) => *count,
        Value::Number(_) | Value::Raw(_) => 0,
    });
    match longest.max().unwrap_or_default() {
        0..=0xff => Width::One,
        0x100..=0xffff => Width::Two,
        _ => Width::Four,
    }
}

impl Value<'_> {
    fn len(&self, width: Width) -> usize {
        match self {
            Self::Number(_) => 8,
            Self::Text(text) => width.bytes() + text.len(),
            Self::Count(_) => width.bytes(),
            Self::Raw(bytes) => bytes.len(),
        }
    }
}

/// Reads the values of a body.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    width: usize,
    bytes: usize,
}

impl<'a> Reader<'a> {
    fn short(&self, what: &'static str) -> DecodeError {
        DecodeError::Short {
            bytes: self.bytes,
            what,
        }
    }

    fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| self.short(what))?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self, width: usize, what: &'static str) -> Result<u64, DecodeError> {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(self.take(width, what)?) {
            *to = *from;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        Ok(self.number(8, what)?.cast_signed())
    }

    pub(crate) fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4, what)?);
        Ok(i32::from_le_bytes(bytes))
    }

    pub(crate) fn is_some(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.number(1, what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::Value {
                what,
                found: other.to_string(),
            }),
        }
    }

    /// A text; what is not UTF-8 in it is replaced.
    pub(crate) fn text(&mut self, what: &'static str) -> Result<String, DecodeError> {
        let width = self.width;
        let length = self.number(width, what)?;
        let length = usize::try_from(length).map_err(|_| self.short(what))?;
        Ok(String::from_utf8_lossy(self.take(length, what)?).into_owned())
    }
}
