//! The smallest HTTP client that these tests need.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// GETs a path: status code and body.
///
/// # Errors
/// Of the connection, or an answer that is no HTTP.
pub fn get(address: &str, path: &str) -> io::Result<(u16, String)> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    ask(stream, "GET", path, "")
}

/// Asks over a Unix socket: status code and body.
///
/// # Errors
/// As of [`get`].
pub fn over_socket(
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    ask(stream, method, path, body)
}

fn ask(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: siding\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or(io::ErrorKind::InvalidData)?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}
