use proptest::prelude::*;
use serde_json::Value as Json;

use super::frame::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES};
use super::pack::Prefix;
use super::releases::read_refusal;
use super::*;

const RECORDINGS: &str = include_str!("recordings.tsv");

struct Recording {
    version: &'static str,
    what: &'static str,
    request: Vec<u8>,
    answer: Vec<u8>,
    values: Json,
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

fn recordings() -> Vec<Recording> {
    RECORDINGS
        .lines()
        .skip(2)
        .map(|line| {
            let [version, what, request, answer, values] = line.split('\t').collect::<Vec<_>>()[..]
            else {
                panic!("{line}");
            };
            Recording {
                version,
                what,
                request: bytes(request),
                answer: bytes(answer),
                values: serde_json::from_str(values).unwrap(),
            }
        })
        .collect()
}

fn id(value: &Json) -> Id {
    Id(value[0].as_u64().unwrap(), value[1].as_u64().unwrap())
}

fn segments(values: &Json) -> Vec<Segment> {
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let segment = |value: &Json| Segment {
        id: id(&value["id"]),
        name: text(&value["name"]),
        base: value["base"].as_u64().unwrap(),
        size_bytes: value["size_bytes"].as_u64().unwrap(),
        te_endpoint: text(&value["te_endpoint"]),
        protocol: text(&value["protocol"]),
        host_id: text(&value["host_id"]),
    };
    values["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(segment)
        .collect()
}

fn release<'a>(releases: &'a Releases, version: &str) -> &'a Release {
    releases
        .iter()
        .find(|release| release.versions().iter().any(|own| own == version))
        .unwrap()
}

fn encoded(release: &Release, what: &str, values: &Json) -> Request {
    match what {
        "ServiceReady" => release.service_ready(),
        "MountSegment" => release.mount(&segments(values)[0], id(&values["client_id"])),
        "ReMountSegment" => release.remount(&segments(values), id(&values["client_id"])),
        "Ping" => release.ping(id(&values["client_id"])),
        "UnmountSegment" => release.unmount(id(&values["segment_id"]), id(&values["client_id"])),
        "empty put" => release.probe().map(|Probe(request)| request),
        _ => panic!("{what}"),
    }
    .unwrap()
}

use super::releases::Request;

#[test]
fn what_a_release_sends_is_what_we_send_for_it_byte_by_byte() {
    let releases = Releases::recorded().unwrap();
    let mut seen = 0;
    for recording in recordings() {
        if matches!(recording.what, "unreadable" | "unknown function") {
            continue;
        }
        let own = encoded(
            release(&releases, recording.version),
            recording.what,
            &recording.values,
        );
        let header: [u8; REQUEST_HEADER_BYTES] = recording.request[..REQUEST_HEADER_BYTES]
            .try_into()
            .unwrap();
        let header = RequestHeader::decode(&header).unwrap();
        assert_eq!(own.function, header.function);
        let mut frame = RequestHeader {
            sequence: header.sequence,
            function: own.function,
            body_bytes: u32::try_from(own.body.len()).unwrap(),
            attachment_bytes: 0,
        }
        .encode()
        .to_vec();
        frame.extend(own.body);
        assert_eq!(
            frame, recording.request,
            "{} {}",
            recording.version, recording.what
        );
        seen += 1;
    }
    // 8 releases of 9 exchanges each.
    assert_eq!(seen, 72);
}

#[test]
fn what_a_release_answers_is_understood() {
    let releases = Releases::recorded().unwrap();
    let mut pings = Vec::new();
    for recording in recordings() {
        let release = release(&releases, recording.version);
        let header: [u8; RESPONSE_HEADER_BYTES] = recording.answer[..RESPONSE_HEADER_BYTES]
            .try_into()
            .unwrap();
        let header = ResponseHeader::decode(&header).unwrap();
        assert_eq!(header.encode(), recording.answer[..RESPONSE_HEADER_BYTES]);
        let body = &recording.answer[RESPONSE_HEADER_BYTES..];
        assert_eq!(header.body_bytes as usize, body.len());
        match recording.what {
            "unreadable" => {
                assert_eq!(header.error, 4);
                assert!(read_refusal(body).unwrap().starts_with("invalid rpc"));
            }
            "unknown function" => {
                assert_eq!(header.error, 11);
                assert_eq!(
                    read_refusal(body).unwrap(),
                    "the rpc function not registered"
                );
            }
            "empty put" => {
                assert_eq!(header.error, 0);
                assert!(release.answered_probe(body));
                assert_eq!(release.read_done(body).map_err(drop), Err(()));
            }
            "ServiceReady" => {
                assert_eq!(
                    release.read_ready(body),
                    Ok(Outcome::Done("2.0.0".to_owned()))
                );
            }
            "Ping" => pings.push(release.read_pong(body).unwrap()),
            _ => assert_eq!(release.read_done(body), Ok(Outcome::Done(()))),
        }
    }
    // Of each release the first ping, which asks for the mount, and the last.
    let pong = |status| Outcome::Done(Pong { view: 0, status });
    let both = [pong(ClientStatus::MountAgain), pong(ClientStatus::Known)];
    let expected: Vec<_> = both.into_iter().cycle().take(16).collect();
    assert_eq!(pings, expected);
}

#[test]
fn every_release_answers_its_own_probe_and_no_other_does() {
    let releases = Releases::recorded().unwrap();
    let names: Vec<String> = releases.iter().map(ToString::to_string).collect();
    let expected = [
        "0.3.10.post2",
        "0.3.11 or 0.3.11.post1",
        "0.3.12 or 0.3.12.post1",
        "0.3.13 or 0.3.13.post1",
        "0.3.14",
    ];
    assert_eq!(names, expected);
    // 0.3.13 and 0.3.14 read the same probe and answer it differently.
    let probes = releases.probes().unwrap();
    assert_eq!(probes.len(), 4);
    for recording in recordings().iter().filter(|one| one.what == "empty put") {
        let body = &recording.answer[RESPONSE_HEADER_BYTES..];
        let found: Vec<&Release> = probes
            .iter()
            .filter_map(|probe| releases.of_answer(probe, body))
            .filter(|found| {
                found.probe().unwrap().0.body == recording.request[REQUEST_HEADER_BYTES..]
            })
            .collect();
        assert_eq!(found, [release(&releases, recording.version)]);
    }
}

#[test]
fn a_refusal_by_the_master_is_its_code() {
    let releases = Releases::recorded().unwrap();
    // Seen of 0.3.13.post1: a segment of no size.
    let body = bytes("cd6828af0487fa010000a8fdffff");
    let newest = release(&releases, "0.3.13.post1");
    assert_eq!(newest.read_done(&body), Ok(Outcome::Refused(-600)));
}

#[test]
fn several_segments_follow_their_count() {
    let releases = Releases::recorded().unwrap();
    let release = release(&releases, "0.3.13.post1");
    let recording = recordings()
        .into_iter()
        .find(|one| one.version == "0.3.13.post1" && one.what == "ReMountSegment")
        .unwrap();
    let one = segments(&recording.values)[0].clone();
    let client_id = id(&recording.values["client_id"]);
    let single = release
        .remount(std::slice::from_ref(&one), client_id)
        .unwrap()
        .body;
    let double = release
        .remount(&[one.clone(), one], client_id)
        .unwrap()
        .body;
    let prefix = 4 + 1 + Prefix::split(&single).unwrap().0.types.len();
    let segment = &single[prefix + 1..single.len() - 16];
    let mut expected = single[..prefix].to_vec();
    expected.push(2);
    expected.extend([segment, segment, &single[single.len() - 16..]].concat());
    assert_eq!(double, expected);
}

#[test]
fn lengths_are_as_wide_as_the_longest_needs() {
    let releases = Releases::recorded().unwrap();
    let recording = recordings()
        .into_iter()
        .find(|one| one.what == "MountSegment" && one.version == "0.3.14")
        .unwrap();
    let segment = segments(&recording.values)[0].clone();
    // The byte of widths, with and without the body's length.
    for (length, plain, sized) in [
        (255, 0x04, 0x05),
        (256, 0x0c, 0x0d),
        (65_000, 0x0c, 0x0d),
        (65_535, 0x0c, 0x0e),
        (65_536, 0x14, 0x16),
    ] {
        let name = "n".repeat(length);
        let segment = Segment {
            name,
            ..segment.clone()
        };
        for (version, widths) in [("0.3.13", plain), ("0.3.14", sized)] {
            let body = release(&releases, version)
                .mount(&segment, Id(1, 2))
                .unwrap()
                .body;
            assert_eq!(body[4], widths, "{version} {length}");
            let (found, _) = Prefix::split(&body).unwrap();
            assert_eq!(found.is_sized, version == "0.3.14");
        }
    }
    let name = "n".repeat(frame::MAX_BODY_BYTES as usize);
    let refused = release(&releases, "0.3.13").mount(&Segment { name, ..segment }, Id(1, 2));
    assert!(matches!(refused, Err(EncodeError::TooLong { bytes }) if bytes > 4 << 20));
}

#[test]
fn bytes_that_are_no_frame_say_what_they_are() {
    let mut request = RequestHeader {
        sequence: 1,
        function: 2,
        body_bytes: 3,
        attachment_bytes: frame::MAX_BODY_BYTES - 3,
    };
    assert_eq!(RequestHeader::decode(&request.encode()), Ok(request));
    request.attachment_bytes = u32::MAX;
    request.body_bytes = u32::MAX;
    assert_eq!(
        RequestHeader::decode(&request.encode()),
        Err(FrameError::TooLong {
            bytes: 2 * u64::from(u32::MAX)
        })
    );
    let mut http = [0; RESPONSE_HEADER_BYTES];
    http.copy_from_slice(b"HTTP/1.1 400 Bad");
    assert_eq!(
        ResponseHeader::decode(&http),
        Err(FrameError::Magic { found: b'H' })
    );
    http[0] = 21;
    assert_eq!(
        ResponseHeader::decode(&http),
        Err(FrameError::Version { found: b'T' })
    );
}

#[test]
fn a_bad_table_names_its_line() {
    let good = include_str!("releases.tsv");
    let broken = |from: &str, to: &str| Releases::parse(&good.replacen(from, to, 1)).unwrap_err();
    assert_eq!(
        broken("plain\t-\t-\n", "plain\t-\n").what,
        "10 columns, not 11"
    );
    assert_eq!(broken("plain\t-\t-\n", "plain\t-\n").line, 4);
    assert_eq!(
        broken("\tPing\t", "\tPong\t").what,
        "\"Pong\" is no call that is known"
    );
    assert_eq!(
        broken("\tPing\t", "\tServiceReady\t").what,
        "0.3.10.post2 needs exactly one ServiceReady"
    );
    assert_eq!(
        broken("35ccb31c", "35ccb3").what,
        "hash \"35ccb3\" is not 4 bytes"
    );
    assert_eq!(
        broken("35ccb31c", "35ccb3é").what,
        "\"35ccb3é\" is not hexadecimal"
    );
    assert_eq!(
        broken("id,name", "id,nome").what,
        "\"nome\" is no field of a segment that is known"
    );
    assert_eq!(
        broken("plain", "plane").what,
        "length \"plane\" is neither sized nor plain"
    );
    assert_eq!(
        broken("87800c0100", "87800c01").what,
        "types that do not end with their only zero"
    );
}

#[test]
fn an_id_is_32_digits() {
    let id = Id(1, u64::MAX);
    assert_eq!(id.to_string(), "0000000000000001ffffffffffffffff");
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!(id.part(1), Id(1, 0));
    for text in ["", "1", "+000000000000001ffffffffffffffff", &"é".repeat(16)] {
        assert_eq!(text.parse::<Id>(), Err(NoId(text.to_owned())));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(body in prop::collection::vec(any::<u8>(), 0..200), cut in 0..80_usize, at in 0..80_usize, value: u8) {
        let releases = Releases::recorded().unwrap();
        let mut near = bytes("538f2a740487fd0301ff010001000000000000000002000000");
        near.truncate(cut);
        if let Some(byte) = near.get_mut(at) {
            *byte = value;
        }
        for body in [&body, &near] {
            for release in releases.iter() {
                let _ = (release.read_done(body), release.read_pong(body), release.read_ready(body));
                let _ = release.answered_probe(body);
            }
            let _ = read_refusal(body);
        }
    }

    #[test]
    fn headers_are_read_as_written_or_refused(raw: [u8; REQUEST_HEADER_BYTES]) {
        if let Ok(header) = RequestHeader::decode(&raw) {
            prop_assert_eq!(RequestHeader::decode(&header.encode()), Ok(header));
            prop_assert!(header.body_bytes <= frame::MAX_BODY_BYTES);
        }
        let mut ours = raw;
        ours[..2].copy_from_slice(&[21, 0]);
        let _ = RequestHeader::decode(&ours);
        let mut response = [0; RESPONSE_HEADER_BYTES];
        response.copy_from_slice(&ours[..RESPONSE_HEADER_BYTES]);
        if let Ok(header) = ResponseHeader::decode(&response) {
            prop_assert_eq!(ResponseHeader::decode(&header.encode()), Ok(header));
        }
    }
}
