//! The smallest HTTP client that these tests need.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// GETs a path: status code and body.
///
/// # Errors
/// Of the connection, or an answer that is no HTTP.
pub fn get(address: &str, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or(io::ErrorKind::InvalidData)?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}
