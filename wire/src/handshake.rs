//! Peer to peer metadata: one framed message each way on a connection of its own.
//!
//! A frame is a length (u64, little endian), a byte that says what it is, and JSON; the length
//! counts the byte. The oldest form has no such byte and always is a [`Kind::Connection`]. An
//! answer has the form of its request.

use serde::{Deserialize, Serialize};

/// Bytes of a frame's length.
pub const LENGTH_BYTES: usize = 8;

/// The most that a length may say, bytes.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// The byte that announces the oldest form where it does not start with its JSON.
const OLDEST: u8 = 0xff;

/// What a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Endpoints of a NIC pair are exchanged: [`Connection`] both ways.
    Connection,
    /// Descriptors are exchanged: [`crate::descriptor::Descriptor`] both ways.
    Metadata,
    /// A notice: [`Notice`] both ways.
    Notify,
    /// Are you there? `{}`, and [`ProbeAnswer`].
    Probe,
}

impl Kind {
    /// Its name, fit for a metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Metadata => "metadata",
            Self::Notify => "notify",
            Self::Probe => "probe",
        }
    }

    fn byte(self) -> u8 {
        match self {
            Self::Connection => 0,
            Self::Metadata => 1,
            Self::Notify => 2,
            Self::Probe => 3,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Connection, Self::Metadata, Self::Notify, Self::Probe]
            .into_iter()
            .find(|kind| kind.byte() == byte)
    }
}

/// How a message says what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// By a byte before the JSON.
    Typed(Kind),
    /// Not at all: the oldest form.
    Oldest,
}

impl Form {
    /// What the message is about.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Typed(kind) => kind,
            Self::Oldest => Kind::Connection,
        }
    }
}

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// There is nothing in it.
    #[error("a handshake of 0 bytes; the length counts at least the byte of its kind")]
    Empty,
    /// It is too long, or its peer speaks another protocol.
    #[error("a handshake of {length_bytes} bytes; at most {MAX_BODY_BYTES} are taken")]
    TooLong {
        /// The length that is announced, bytes.
        length_bytes: u64,
    },
    /// Its first byte is no kind that is known, and no JSON.
    #[error(
        "a handshake of kind {0:#04x}; known are 0 to 3, and JSON without a kind (the oldest form)"
    )]
    Kind(u8),
}

/// Reads a frame's length: bytes of the body that follows.
///
/// # Errors
/// [`FrameError::Empty`], [`FrameError::TooLong`].
pub fn body_bytes(length: [u8; LENGTH_BYTES]) -> Result<usize, FrameError> {
    let length_bytes = u64::from_le_bytes(length);
    match usize::try_from(length_bytes) {
        Ok(0) => Err(FrameError::Empty),
        Ok(length) if length <= MAX_BODY_BYTES => Ok(length),
        _ => Err(FrameError::TooLong { length_bytes }),
    }
}

/// Splits a frame's body into its form and its JSON, which may be empty and is not checked.
///
/// # Errors
/// [`FrameError::Empty`], [`FrameError::Kind`].
pub fn split(body: &[u8]) -> Result<(Form, &[u8]), FrameError> {
    match body.split_first() {
        None => Err(FrameError::Empty),
        Some((b'{', _)) => Ok((Form::Oldest, body)),
        Some((&OLDEST, json)) => Ok((Form::Oldest, json)),
        Some((byte, json)) => match Kind::from_byte(*byte) {
            Some(kind) => Ok((Form::Typed(kind), json)),
            None => Err(FrameError::Kind(*byte)),
        },
    }
}

/// A whole frame: length, kind where the form has one, and JSON.
///
/// # Errors
/// [`FrameError::TooLong`], and [`FrameError::Empty`] for the oldest form of nothing.
pub fn encode(form: Form, json: &[u8]) -> Result<Vec<u8>, FrameError> {
    let kind = match form {
        Form::Typed(kind) => Some(kind.byte()),
        Form::Oldest => None,
    };
    let length = json.len() + usize::from(kind.is_some());
    let header = (length as u64).to_le_bytes();
    body_bytes(header)?;
    let mut frame = Vec::with_capacity(LENGTH_BYTES + length);
    frame.extend_from_slice(&header);
    frame.extend(kind);
    frame.extend_from_slice(json);
    Ok(frame)
}

/// One end of a NIC pair (rdma, efa), as request and as answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// The sender's gid.
    pub local_gid: String,
    /// The sender's local id.
    pub local_lid: u16,
    /// The sender's NIC: `<segment>@<device>`.
    pub local_nic_path: String,
    /// Free text; empty.
    pub payload: String,
    /// The receiver's NIC.
    pub peer_nic_path: String,
    /// The sender's queue pairs (rdma).
    pub qp_num: Vec<u32>,
    /// Whether the sender's queue pairs are ready.
    pub ready_ack: bool,
    /// Why it is refused; empty where it is not.
    pub reply_msg: String,
    /// The sender's endpoint in hexadecimal (efa).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub efa_addr: String,
}

impl Connection {
    /// The answer that refuses `asked`.
    #[must_use]
    pub fn refused(asked: &Self, why: impl Into<String>) -> Self {
        Self {
            local_nic_path: asked.peer_nic_path.clone(),
            peer_nic_path: asked.local_nic_path.clone(),
            reply_msg: why.into(),
            ..Self::default()
        }
    }
}

/// A notice to a segment's owner, and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Notice {
    /// Who sends it; empty in the answer.
    pub name: String,
    /// The notice; `success` in the answer.
    pub notify_msg: String,
}

impl Notice {
    /// The answer to a notice that was taken.
    #[must_use]
    pub fn taken() -> Self {
        Self {
            name: String::new(),
            notify_msg: SUCCESS.to_owned(),
        }
    }
}

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeAnswer {
    /// `success`.
    pub status: String,
}

impl ProbeAnswer {
    /// The answer of one who is there.
    #[must_use]
    pub fn alive() -> Self {
        Self {
            status: SUCCESS.to_owned(),
        }
    }

    /// Whether it is that.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.status == SUCCESS
    }
}

const SUCCESS: &str = "success";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn frames_are_length_kind_and_json() {
        assert_eq!(
            encode(Form::Typed(Kind::Probe), b"{}").unwrap(),
            b"\x03\0\0\0\0\0\0\0\x03{}"
        );
        assert_eq!(
            encode(Form::Oldest, b"{}").unwrap(),
            b"\x02\0\0\0\0\0\0\0{}"
        );
        assert_eq!(
            encode(Form::Typed(Kind::Metadata), b"").unwrap(),
            b"\x01\0\0\0\0\0\0\0\x01"
        );
    }

    #[test]
    fn lengths_are_bounded() {
        let length = |bytes: u64| body_bytes(bytes.to_le_bytes());
        assert_eq!(length(0), Err(FrameError::Empty));
        assert_eq!(length(1), Ok(1));
        assert_eq!(length(1 << 20), Ok(1 << 20));
        for length_bytes in [(1 << 20) + 1, u64::MAX] {
            assert_eq!(
                length(length_bytes),
                Err(FrameError::TooLong { length_bytes })
            );
        }
        // An HTTP request that came to the wrong port.
        assert!(body_bytes(*b"GET / HT").is_err());
        let long = vec![b' '; 1 << 20];
        assert!(encode(Form::Typed(Kind::Metadata), &long).is_err());
        assert!(encode(Form::Typed(Kind::Metadata), &long[1..]).is_ok());
        assert_eq!(encode(Form::Oldest, b""), Err(FrameError::Empty));
    }

    #[test]
    fn the_first_byte_says_the_form() {
        let kinds = [Kind::Connection, Kind::Metadata, Kind::Notify, Kind::Probe];
        for (byte, kind) in (0_u8..).zip(kinds) {
            assert_eq!(
                split(&[byte, b'{', b'}']),
                Ok((Form::Typed(kind), &b"{}"[..]))
            );
            assert_eq!(Form::Typed(kind).kind(), kind);
        }
        assert_eq!(split(b"{}"), Ok((Form::Oldest, &b"{}"[..])));
        assert_eq!(split(b"\xff{}"), Ok((Form::Oldest, &b"{}"[..])));
        assert_eq!(Form::Oldest.kind(), Kind::Connection);
        assert_eq!(split(b"\x04{}"), Err(FrameError::Kind(4)));
        assert_eq!(split(b" {}"), Err(FrameError::Kind(b' ')));
        assert_eq!(split(b""), Err(FrameError::Empty));
    }

    #[test]
    fn a_refusal_says_why_and_names_both_ends() {
        // As the wheel's RDMA client asks.
        let asked = json!({
            "local_gid": "00:01", "local_lid": 0, "local_nic_path": "a:1@rxe0", "payload": "",
            "peer_nic_path": "b:2@rxe0", "qp_num": [17, 18], "ready_ack": false, "reply_msg": "",
        });
        let asked: Connection = serde_json::from_value(asked).unwrap();
        assert_eq!(asked.qp_num, [17, 18]);
        assert_eq!(
            serde_json::to_value(Connection::refused(&asked, "no rdma here")).unwrap(),
            json!({
                "local_gid": "", "local_lid": 0, "local_nic_path": "b:2@rxe0", "payload": "",
                "peer_nic_path": "a:1@rxe0", "qp_num": [], "ready_ack": false,
                "reply_msg": "no rdma here",
            })
        );
    }

    #[test]
    fn answers_are_those_that_the_wheel_gives() {
        assert_eq!(
            serde_json::to_string(&Notice::taken()).unwrap(),
            r#"{"name":"","notify_msg":"success"}"#
        );
        assert_eq!(
            serde_json::to_string(&ProbeAnswer::alive()).unwrap(),
            r#"{"status":"success"}"#
        );
    }

    proptest! {
        #[test]
        fn any_bytes_split_or_are_refused(body: Vec<u8>, length: [u8; 8]) {
            let _ = body_bytes(length);
            if let Ok((form, json)) = split(&body) {
                let again = encode(form, json);
                if let Ok(again) = again {
                    prop_assert_eq!(&again[again.len() - json.len()..], json);
                }
            }
            let _ = serde_json::from_slice::<Connection>(&body);
            let _ = serde_json::from_slice::<Notice>(&body);
        }

        #[test]
        fn a_frame_survives_the_wire(kind in 0_u8..4, json in "\\{.{0,200}") {
            let form = Kind::from_byte(kind).map_or(Form::Oldest, Form::Typed);
            for form in [form, Form::Oldest] {
                let frame = encode(form, json.as_bytes()).unwrap();
                let (length, body) = frame.split_at(LENGTH_BYTES);
                prop_assert_eq!(body_bytes(length.try_into().unwrap()), Ok(body.len()));
                prop_assert_eq!(split(body), Ok((form, json.as_bytes())));
            }
        }
    }
}
