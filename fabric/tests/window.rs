//! Windows move bytes between mappings and real sockets.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use siding_fabric::{MapRequest, Mapping, OutOfWindow, Pages, Placement, Source, Window};

const LEN: u64 = 1 << 20;

fn window() -> Window {
    let request = MapRequest {
        len_bytes: LEN,
        pages: Pages::Base,
        placement: Placement::Any,
        source: Source::Process,
    };
    Window::whole(Arc::new(Mapping::new(request).unwrap()))
}

fn out(window: &Window, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    window.copy_out(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_sent_is_the_prefix_and_then_the_windows_bytes() {
    let window = window();
    window.copy_in(100, b"segment").unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    assert_eq!(window.send(&ours, b"head:", 100, 7).unwrap(), 12);
    assert_eq!(window.send(&ours, b"", 103, 4).unwrap(), 4);
    assert_eq!(window.send(&ours, b"!", 0, 0).unwrap(), 1);
    let mut got = [0; 17];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"head:segmentment!");
}

#[test]
fn what_is_received_fills_the_prefix_first_and_nothing_beyond_the_range() {
    let window = window();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"head:segment+more").unwrap();
    let mut head = [0; 5];
    assert_eq!(window.receive(&ours, &mut head, 8, 7).unwrap(), 12);
    assert_eq!(&head, b"head:");
    assert_eq!(window.receive(&ours, &mut [], 100, 100).unwrap(), 5);
    assert_eq!(out(&window, 7, 9), b"\0segment\0");
    assert_eq!(out(&window, 100, 6), b"+more\0");
    drop(theirs);
    assert_eq!(window.receive(&ours, &mut [], 0, 1).unwrap(), 0);
}

#[test]
fn neither_way_waits_and_a_peer_that_left_is_an_error_not_a_signal() {
    let window = window();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let empty = window.receive(&ours, &mut [], 0, LEN).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    let full = loop {
        if let Err(error) = window.send(&ours, b"x", 0, LEN) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    drop(theirs);
    let gone = window.send(&ours, b"", 0, 1).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn ranges_beyond_the_end_are_refused_in_windows_and_in_parts_of_them() {
    let whole = window();
    let part = whole.part(4096, 100).unwrap();
    assert_eq!(part.len_bytes(), 100);
    assert_eq!(part.address(), whole.address() + 4096);
    part.copy_in(99, b"z").unwrap();
    assert_eq!(out(&whole, 4195, 1), b"z");
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&[7; 10]).unwrap();
    for (offset_bytes, len_bytes) in [(100, 1), (0, 101), (u64::MAX, 2), (1, u64::MAX)] {
        let refused = OutOfWindow {
            offset_bytes,
            len_bytes,
            window_bytes: 100,
        };
        assert_eq!(part.part(offset_bytes, len_bytes).unwrap_err(), refused);
        for result in [
            part.send(&ours, b"", offset_bytes, len_bytes),
            part.receive(&ours, &mut [], offset_bytes, len_bytes),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), refused.to_string());
        }
    }
    assert!(part.copy_in(96, b"12345").is_err());
    assert!(part.copy_out(96, &mut [0; 5]).is_err());
    assert_eq!(out(&whole, 4195, 2), b"z\0");
    // Nothing was taken from the socket.
    assert_eq!(part.receive(&ours, &mut [], 0, 100).unwrap(), 10);
}

#[test]
fn a_window_keeps_its_mapping() {
    let part = {
        let whole = window();
        whole.part(LEN - 1, 1).unwrap()
    };
    part.copy_in(0, b"k").unwrap();
    assert_eq!(out(&part, 0, 1), b"k");
}
