//! The asking side of peer to peer metadata.

use std::io;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use siding_wire::descriptor::{Descriptor, DescriptorError};
use siding_wire::handshake::{self, Form, FrameError, Kind, Notice, ProbeAnswer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::endpoint::body;

/// Why a peer was asked in vain.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It could not be reached, or ended the connection.
    #[error("{peer}: {source}")]
    Io {
        /// Its `host:port`.
        peer: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It took too long.
    #[error("{peer}: no answer within {} s", .limit.as_secs_f64())]
    TimedOut {
        /// Its `host:port`.
        peer: String,
        /// What it had.
        limit: Duration,
    },
    /// The question or the answer is no frame.
    #[error("{peer}: {source}")]
    Frame {
        /// Its `host:port`.
        peer: String,
        /// What is wrong.
        source: FrameError,
    },
    /// The answer is of another kind, or not what this kind has.
    #[error("{peer}: the answer can't be read: {why}")]
    Answer {
        /// Its `host:port`.
        peer: String,
        /// What is wrong.
        why: String,
    },
    /// The answer's descriptor is void.
    #[error("{peer}: {source}")]
    Descriptor {
        /// Its `host:port`.
        peer: String,
        /// What is wrong.
        source: DescriptorError,
    },
}

/// Asks for a segment's descriptor; `ours` tells who asks.
///
/// # Errors
/// [`AskError`].
pub async fn descriptor_of(
    peer: &str,
    ours: &Descriptor,
    limit: Duration,
) -> Result<Descriptor, AskError> {
    let json = ask(peer, Kind::Metadata, ours, limit).await?;
    Descriptor::parse(&json).map_err(|source| AskError::Descriptor {
        peer: peer.to_owned(),
        source,
    })
}

/// Asks whether a peer is there.
///
/// # Errors
/// [`AskError`].
pub async fn probe(peer: &str, limit: Duration) -> Result<bool, AskError> {
    let json = ask(peer, Kind::Probe, &serde_json::Map::new(), limit).await?;
    Ok(read::<ProbeAnswer>(peer, &json)?.is_alive())
}

/// Sends a notice; gives the answer.
///
/// # Errors
/// [`AskError`].
pub async fn notify(peer: &str, notice: &Notice, limit: Duration) -> Result<Notice, AskError> {
    let json = ask(peer, Kind::Notify, notice, limit).await?;
    read(peer, &json)
}

fn read<T: DeserializeOwned>(peer: &str, json: &[u8]) -> Result<T, AskError> {
    serde_json::from_slice(json).map_err(|error| AskError::Answer {
        peer: peer.to_owned(),
        why: error.to_string(),
    })
}

/// One question on a connection of its own; gives the answer's JSON.
async fn ask(
    peer: &str,
    kind: Kind,
    question: &impl Serialize,
    limit: Duration,
) -> Result<Vec<u8>, AskError> {
    let answer = |why: String| AskError::Answer {
        peer: peer.to_owned(),
        why,
    };
    let frame_error = |source| AskError::Frame {
        peer: peer.to_owned(),
        source,
    };
    let json = serde_json::to_vec(question).map_err(|error| answer(error.to_string()))?;
    let frame = handshake::encode(Form::Typed(kind), &json).map_err(frame_error)?;
    let exchange = async {
        let mut stream = TcpStream::connect(peer).await?;
        stream.write_all(&frame).await?;
        body(&mut stream).await
    };
    let body = match tokio::time::timeout(limit, exchange).await {
        Err(_) => {
            let peer = peer.to_owned();
            return Err(AskError::TimedOut { peer, limit });
        }
        Ok(Err(source)) => {
            let peer = peer.to_owned();
            return Err(AskError::Io { peer, source });
        }
        Ok(Ok(body)) => body,
    };
    match handshake::split(&body).map_err(frame_error)? {
        (Form::Typed(answered), json) if answered == kind => Ok(json.to_vec()),
        (form, _) => Err(answer(format!("it is of kind {}", form.kind().as_str()))),
    }
}
