use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use siding_crds::quantity::MAX_BYTES;

use super::*;

const GIB: u64 = 1 << 30;
const KV: &str = "segments: [{name: kv, size: 1Gi}]\n";

fn n(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn refused(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn every_field_is_taken() {
    let config = parse(
        "
segments:
- {name: kv, size: 1.5Gi, page: 2Mi, numa: 1, directory: /dev/hugepages/kv}
- {name: index-2, size: 4096e3, page: Transparent, numa: Interleave, directory: ~}
- {name: '3', size: \"8192\", page: AUTO, numa: local}
storage: {directory: /dev/shm/siding}
registration: {backend: io_uring, cap: 8, order: declared, touchThreads: 3}
transfer: {}
listen: {http: '[::1]:0'}
onFailure: serve
shutdown: {graceSeconds: 3600}
logging: {format: json, level: 'siding=debug,warn'}
",
    )
    .unwrap();
    let built = Config::builder()
        .segment(
            Segment::new("kv", 3 * GIB / 2)
                .page(Page::Size(2 << 20))
                .numa(Numa::Node(1))
                .directory("/dev/hugepages/kv"),
        )
        .segments([
            Segment::new("index-2", 4_096_000)
                .page(Page::Transparent)
                .numa(Numa::Interleave),
            Segment::new("3", 8192),
        ])
        .storage_directory("/dev/shm/siding")
        .backend(Backend::IoUring)
        .cap(Cap::Limit(n(8)))
        .order(Order::Declared)
        .touch_threads(TouchThreads::Count(n(3)))
        .http("[::1]:0".parse().unwrap())
        .on_failure(OnFailure::Serve)
        .grace_seconds(3600)
        .log_format(LogFormat::Json)
        .log_level("siding=debug,warn")
        .build()
        .unwrap();
    assert_eq!(config, built);
    assert_eq!(parse(&to_yaml(&config).unwrap()).unwrap(), config);
}

#[test]
fn every_field_has_a_default() {
    let config = parse(KV).unwrap();
    let defaults = Config {
        segments: vec![Segment::new("kv", GIB)],
        ..Config::default()
    };
    assert_eq!(config, defaults);
    assert_eq!(validate(&defaults), Ok(()));
    let emptied = "storage:\nregistration: {}\ntransfer:\nlisten:\nshutdown: ~\nlogging: null\n";
    assert_eq!(parse(&format!("{KV}{emptied}")).unwrap(), defaults);
    assert_eq!(
        to_yaml(&config).unwrap(),
        "\
segments:
- name: kv
  size: 1Gi
  page: auto
  numa: local
  directory: null
storage:
  directory: /run/siding
registration:
  backend: auto
  cap: auto
  order: ascending
  touchThreads: auto
transfer: {}
listen:
  http: 127.0.0.1:9600
onFailure: exit
shutdown:
  graceSeconds: 30
logging:
  format: auto
  level: info
"
    );
}

#[test]
fn sizes_are_read_from_their_text() {
    for (text, bytes) in [
        ("1.5Gi", 1_610_612_736),
        ("0.5Gi", 536_870_912),
        ("4096e3", 4_096_000),
        ("4.096E6", 4_096_000),
        ("128974848000m", 128_974_848),
        ("1Pi", 1 << 50),
        ("4096", 4096),
        ("'4096'", 4096),
        ("+4096", 4096),
        ("04096", 4096),
        ("9223372036854771712", MAX_BYTES - 4095),
    ] {
        let config = parse(&format!("segments: [{{name: kv, size: {text}}}]")).unwrap();
        assert_eq!(config.segments[0].size.get(), bytes, "{text}");
    }
}

#[test]
fn anchors_are_taken_where_they_are_plain() {
    let text = "segments:\n- &a {name: kv, size: &s 1Gi}\n- {name: b, size: *s}\n";
    let sizes: Vec<u64> = parse(text)
        .unwrap()
        .segments
        .iter()
        .map(|segment| segment.size.get())
        .collect();
    assert_eq!(sizes, [GIB, GIB]);
}

/// In the segment `kv` of 1Gi, one more field; the message without its place.
#[test]
fn bad_segments() {
    for (fields, message) in [
        (
            "name: kv, size: 0",
            "size: '0' is no size: nothing to mount; write at least one page, e.g. '4Ki'",
        ),
        (
            "name: kv, size: 0Gi, page: 2Mi",
            "size: '0Gi' is no size: nothing to mount; write at least one page, e.g. '2Mi'",
        ),
        (
            "name: kv, size: 5Mi, page: 2Mi",
            "size: '5Mi' is not a whole number of pages of 2Mi; the nearest that works: '4Mi' or \
             '6Mi'",
        ),
        (
            "name: kv, size: 512Ki, page: 2Mi",
            "size: '512Ki' is not a whole number of pages of 2Mi; the nearest that works: '2Mi'",
        ),
        (
            "name: kv, size: 9223372036854775807, page: 1Gi",
            "size: '9223372036854775807' is not a whole number of pages of 1Gi; the nearest that \
             works: '8589934591Gi'",
        ),
        (
            "name: kv, size: 1073741825",
            "size: '1073741825' is not a whole number of pages of 4Ki, the smallest there are; the \
             nearest that works: '1Gi' or '1048580Ki'",
        ),
        (
            "name: kv, size: 100G",
            "size: '100G' is not a whole number of pages of 4Ki, the smallest there are; the \
             nearest that works: '97656248Ki' or '97656252Ki'",
        ),
        (
            "name: kv, size: 1Gi+1",
            "size: '1Gi+1' is not a quantity: 'Gi+1' is not a unit; write '1Gi'",
        ),
        (
            "name: kv, size: 9223372036854775808",
            "size: '9223372036854775808' is too large: the most is 9223372036854775807 bytes \
             (2^63-1); write less, e.g. '1Ti'",
        ),
        (
            "name: kv, size: 1.5",
            "size: '1.5' is not a whole number of bytes; the nearest are '1' and '2', or with a \
             unit: '1.5Gi'",
        ),
        (
            "name: kv, size: abc",
            "size: 'abc' is not a quantity: it must start with a digit; write digits and a unit, \
             e.g. '1Gi', '512Mi' or '100Gi'",
        ),
        (
            "name: kv, size: -1Gi",
            "size: '-1Gi' is negative; write '1Gi'",
        ),
        (
            "name: kv, size: ",
            "size: '' is not a quantity: it is empty; write digits and a unit, e.g. '1Gi', \
             '512Mi' or '100Gi'",
        ),
        ("name: kv", "size: missing; add it, e.g. 'size: 1Gi'"),
        (
            "name: kv, size: [1Gi]",
            "size: a list stands where a single value is needed; write one value",
        ),
        (
            "name: kv, size: 1Gi, page: 3Mi",
            "page: '3Mi' is not a page size: it is not a power of two; write '2Mi' or '4Mi'",
        ),
        (
            "name: kv, size: 1Gi, page: 2Ki",
            "page: '2Ki' is not a page size: it is too small; the smallest is '4Ki'",
        ),
        (
            "name: kv, size: 1Gi, page: huge",
            "page: 'huge' is not a page size; write 'auto', 'transparent' or a size such as \
             '4Ki', '2Mi' or '1Gi'",
        ),
        (
            "name: kv, size: 1Gi, page: 9223372036854775807",
            "page: '9223372036854775807' is not a page size: it is not a power of two; write '4Ei'",
        ),
        (
            "name: kv, size: 1Gi, numa: -1",
            "numa: '-1' is not a NUMA policy; write 'local', 'interleave' or a node's number, \
             e.g. '0'",
        ),
        (
            "name: kv, size: 1Gi, numa: 4294967296",
            "numa: '4294967296' is not a NUMA policy; write 'local', 'interleave' or a node's \
             number, e.g. '0'",
        ),
        (
            "name: kv, size: 1Gi, directory: x/y",
            "directory: 'x/y' is not an absolute path: it depends on where the process was \
             started; write e.g. '/run/siding/x/y'",
        ),
        (
            "name: kv, size: 1Gi, directory: ''",
            "directory: '' is no value: it is empty; write a value or remove the line for the \
             default",
        ),
    ] {
        assert_eq!(
            refused(&format!("segments:\n- {{{fields}}}")),
            format!("line 2: segments[kv].{message}")
        );
    }
}

#[test]
fn bad_names() {
    let use_ = "use lowercase letters, digits and '-', e.g.";
    let long = "a".repeat(64);
    for (name, why, works) in [
        ("a/b", "it has '/'", "a-b"),
        ("KV_", "it has 'K'", "kv"),
        ("../kv", "it has '.'", "kv"),
        ("-a", "it must start and end with a letter or digit", "a"),
        ("a-", "it must start and end with a letter or digit", "a"),
        ("'a b'", "it has ' '", "a-b"),
        ("ü", "it has 'ü'", "kv"),
        ("''", "it is empty", "kv"),
        (
            &long,
            "it has 64 characters, at most 63 are allowed",
            &long[1..],
        ),
    ] {
        let value = siding_crds::quoted(name.trim_matches('\''));
        let works = siding_crds::quoted(works);
        assert_eq!(
            refused(&format!("segments: [{{name: {name}, size: 1Gi}}]")),
            format!(
                "line 1: segments[0].name: {value} is not a segment's name: {why}; {use_} {works}"
            )
        );
    }
    assert_eq!(
        refused(
            "segments:\n- {name: kv, size: 1Gi}\n- {name: kv-2, size: 1Gi}\n- {name: kv, size: 1Gi}"
        ),
        "line 4: segments[2].name: 'kv' is the name of segments[0] too; names are unique: write \
         e.g. 'kv-3'"
    );
    for name in ["a", "0", "a-b", &"a".repeat(63)] {
        assert_eq!(validate::name(name), Ok(()));
    }
}

#[test]
fn bad_values() {
    let cap = "write 'auto', 'unbounded' or a whole number of at least 1";
    for (section, field, value, message) in [
        (
            "registration",
            "cap",
            "0",
            "'0' is not a cap: nothing could be registered; write 'unbounded' to lift the cap, \
             'auto' or a whole number of at least 1"
                .to_owned(),
        ),
        (
            "registration",
            "cap",
            "-1",
            format!("'-1' is not a cap; {cap}"),
        ),
        (
            "registration",
            "cap",
            "abc",
            format!("'abc' is not a cap; {cap}"),
        ),
        (
            "registration",
            "cap",
            "8x",
            format!("'8x' is not a cap; {cap}"),
        ),
        (
            "registration",
            "cap",
            "8.0",
            format!("'8.0' is not a cap; {cap}"),
        ),
        (
            "registration",
            "cap",
            "",
            format!("'' is not a cap: it is empty; {cap}"),
        ),
        (
            "registration",
            "cap",
            "''",
            format!("'' is not a cap: it is empty; {cap}"),
        ),
        (
            "registration",
            "cap",
            "99999999999999999999",
            format!("'99999999999999999999' is not a cap: it is too large; {cap}"),
        ),
        (
            "registration",
            "touchThreads",
            "0",
            "'0' is not a number of threads; write 'auto' or a whole number of at least 1"
                .to_owned(),
        ),
        (
            "registration",
            "backend",
            "efa",
            "'efa' is not a registration back end; write 'auto', 'io_uring' or 'none'".to_owned(),
        ),
        (
            "registration",
            "order",
            "random",
            "'random' is not an order; write 'ascending' or 'declared'".to_owned(),
        ),
        (
            "storage",
            "directory",
            "./siding",
            "'./siding' is not an absolute path: it depends on where the process was started; \
             write e.g. '/run/siding/siding'"
                .to_owned(),
        ),
        (
            "storage",
            "directory",
            "\"/run/\\0\"",
            "'/run/\\u{0}' is not an absolute path: it has a NUL character; write e.g. \
             '/run/siding'"
                .to_owned(),
        ),
        (
            "shutdown",
            "graceSeconds",
            "0",
            "'0' is not a number of seconds from 1 to 3600; write whole seconds, e.g. '30'"
                .to_owned(),
        ),
        (
            "shutdown",
            "graceSeconds",
            "3601",
            "'3601' is not a number of seconds from 1 to 3600; write whole seconds, e.g. '30'"
                .to_owned(),
        ),
        (
            "shutdown",
            "graceSeconds",
            "30s",
            "'30s' is not a number of seconds from 1 to 3600; write whole seconds, e.g. '30'"
                .to_owned(),
        ),
        (
            "logging",
            "format",
            "xml",
            "'xml' is not a log format; write 'auto', 'json' or 'text'".to_owned(),
        ),
        (
            "logging",
            "level",
            "",
            "'' is no value: it is empty; write a value or remove the line for the default"
                .to_owned(),
        ),
    ] {
        assert_eq!(
            refused(&format!("{KV}{section}:\n  {field}: {value}")),
            format!("line 3: {section}.{field}: {message}")
        );
    }
}

#[test]
fn bad_addresses() {
    for (value, works) in [
        ("localhost", "127.0.0.1:9600"),
        ("localhost:80", "127.0.0.1:80"),
        ("9600", "127.0.0.1:9600"),
        (":8080", "0.0.0.0:8080"),
        ("*:8080", "0.0.0.0:8080"),
        ("10.0.0.1", "10.0.0.1:9600"),
        ("10.0.0.1:99999", "10.0.0.1:9600"),
        ("::1", "[::1]:9600"),
        ("http://127.0.0.1:9600", "127.0.0.1:9600"),
    ] {
        assert_eq!(
            refused(&format!("{KV}listen: {{http: '{value}'}}")),
            format!(
                "line 2: listen.http: '{value}' is not an IP address and a port; write '{works}'"
            )
        );
        assert!(works.parse::<SocketAddr>().is_ok());
    }
    for value in ["127.0.0.1:0", "[::]:9600", "0.0.0.0:65535"] {
        let config = parse(&format!("{KV}listen: {{http: '{value}'}}")).unwrap();
        assert_eq!(config.listen.http.to_string(), value);
    }
}

#[test]
fn unknown_fields_at_every_level() {
    for (text, message) in [
        (
            "segmnets: [{name: kv, size: 1Gi}]",
            "line 1: segmnets: unknown field 'segmnets'; did you mean 'segments'?",
        ),
        (
            "segments:\n- nmae: kv\n  size: 1Gi",
            "line 2: segments[0].nmae: unknown field 'nmae'; did you mean 'name'?",
        ),
        (
            "segments:\n- name: kv\n  siez: 1Gi",
            "line 3: segments[kv].siez: unknown field 'siez'; did you mean 'size'?",
        ),
        (
            "segments:\n- name: kv\n  size: 1Gi\n  pageSize: 2Mi",
            "line 4: segments[kv].pageSize: unknown field 'pageSize'; did you mean 'page'?",
        ),
        (
            "segments:\n- name: kv\n  size: 1Gi\n  wheels: 4",
            "line 4: segments[kv].wheels: unknown field 'wheels'; write 'name', 'size', 'page', \
             'numa' or 'directory'",
        ),
        (
            "segments:\n- name: kv\n  size: 1Gi\n  cap: 4",
            "line 4: segments[kv].cap: unknown field 'cap'; 'cap' belongs under 'registration'",
        ),
        (
            "segments: [{name: kv, size: 1Gi}]\nregistration:\n  touch_threads: 4",
            "line 3: registration.touch_threads: unknown field 'touch_threads'; did you mean \
             'touchThreads'?",
        ),
        (
            "segments: [{name: kv, size: 1Gi}]\nshutdown:\n  grace: 4",
            "line 3: shutdown.grace: unknown field 'grace'; did you mean 'graceSeconds'?",
        ),
        (
            "segments: [{name: kv, size: 1Gi}]\nlogging:\n  listen: {}",
            "line 3: logging.listen: unknown field 'listen'; 'listen' stands at the top, not \
             indented",
        ),
        (
            "segments: [{name: kv, size: 1Gi}]\ntransfer:\n  port: 4",
            "line 3: transfer.port: unknown field 'port'; 'transfer' has no fields yet: remove it",
        ),
        (
            "segments: [{name: kv, size: 1Gi}]\n<<: {}",
            "line 2: <<: unknown field '<<'; write 'segments', 'storage', 'registration', \
             'transfer', 'listen', 'onFailure', 'shutdown' or 'logging'",
        ),
    ] {
        assert_eq!(refused(text), message);
    }
}

#[test]
fn wrong_shapes() {
    for (text, message) in [
        (
            "5",
            "line 1: '5' stands where a mapping of fields is needed; write fields, e.g. \
             'segments: …'",
        ),
        (
            "[]",
            "line 1: a list stands where a mapping of fields is needed; write fields, e.g. \
             'segments: …'",
        ),
        (
            "segments: {kv: 1Gi}",
            "line 1: segments: a mapping stands where a list is needed; write a list: segments: \
             [{name: kv, size: 1Gi}]",
        ),
        (
            "segments:\n- kv",
            "line 2: segments[0]: 'kv' stands where a mapping of fields is needed; write fields, \
             e.g. 'name: …'",
        ),
        (
            "segments:\n-\n- {}",
            "line 2: segments[0].name: missing; add it, e.g. 'name: kv'\n\
             line 2: segments[0].size: missing; add it, e.g. 'size: 1Gi'\n\
             line 3: segments[1].name: missing; add it, e.g. 'name: kv'\n\
             line 3: segments[1].size: missing; add it, e.g. 'size: 1Gi'",
        ),
        (
            "segments: [{name: kv, size: 1Gi}]\nregistration: fast",
            "line 2: registration: 'fast' stands where a mapping of fields is needed; write \
             fields, e.g. 'backend: …'",
        ),
        (
            "segments: [{name: kv, size: 1Gi}]\ntransfer: []",
            "line 2: transfer: a list stands where a mapping of fields is needed; write '{}'",
        ),
        (
            "segments: []",
            "line 1: segments: no segment is declared; declare at least one, e.g. segments: \
             [{name: kv, size: 1Gi}]",
        ),
        (
            "logging: {}",
            "segments: no segment is declared; declare at least one, e.g. segments: [{name: kv, \
             size: 1Gi}]",
        ),
        (
            "segments: [{name: a, size: 7Ei}, {name: b, size: 7Ei}]",
            "line 1: segments: their sizes add up to 16140901064495857664 bytes; declare at most \
             9223372036854775807 bytes together",
        ),
    ] {
        assert_eq!(refused(text), message);
    }
}

#[test]
fn bad_yaml() {
    let check = "check indentation, brackets and quotes on and above this line";
    for (text, message) in [
        (
            "segments:\n\t- name: kv",
            "line 2: not YAML: tabs disallowed within this context (block indentation) (column \
             2); use spaces, not tabs"
                .to_owned(),
        ),
        (
            "segments: [",
            format!("line 1: not YAML: unclosed bracket '[' (column 11); {check}"),
        ),
        (
            "segments: [{name: kv, size: 1Gi}]\n---\nsegments: []",
            "line 2: a second document starts here; keep one; remove the '---' and what follows"
                .to_owned(),
        ),
        (
            "segments: [{name: kv, size: *x}]",
            "line 1: not YAML: while parsing node, found unknown anchor (column 29); write the \
             value out"
                .to_owned(),
        ),
        (
            "segments: &a [*a]",
            "line 1: an alias stands within its own anchor; write the value out".to_owned(),
        ),
        (
            "segments: [{name: kv, size: !!str 1Gi}]",
            "line 1: the tag 'tag:yaml.org,2002:str' is not taken; remove it; values are read as \
             their field needs"
                .to_owned(),
        ),
        (
            "? [a]\n: b",
            "line 1: a field has no name, or one that is a list or mapping; write 'name: value'"
                .to_owned(),
        ),
        (
            "segments: [{name: kv, size: 1Gi, size: 2Gi}]\nlisten: {}\nlisten: {}",
            "line 1: segments[kv].size: 'size' is given twice; give it once\n\
             line 3: listen: 'listen' is given twice; give it once"
                .to_owned(),
        ),
    ] {
        assert_eq!(refused(text), message, "{text}");
    }
    for text in [
        "",
        "# only comments\n\n# here\n",
        "---\n",
        "---\n...\n",
        "null",
        "\u{feff}",
    ] {
        assert_eq!(
            refused(text),
            "segments: the file is empty: no segment is declared; declare at least one, e.g. \
             segments: [{name: kv, size: 1Gi}]",
            "{text:?}"
        );
    }
}

#[test]
fn all_problems_at_once_in_order() {
    let text = "\
logging: {format: xml}
segments:
- name: kv
  size: abc
  page: 3Mi
- name: a/b
  size: 5Mi
  page: 2Mi
  pgae: 4
registration: {cap: 0}
shutdown: {graceSeconds: 4000}
";
    let error = parse(text).unwrap_err();
    let fields: Vec<(Option<usize>, &str, Option<&str>)> = error
        .problems()
        .iter()
        .map(|problem| {
            (
                problem.line,
                problem.field.as_str(),
                problem.value.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        fields,
        [
            (Some(1), "logging.format", Some("xml")),
            (Some(4), "segments[kv].size", Some("abc")),
            (Some(5), "segments[kv].page", Some("3Mi")),
            (Some(6), "segments[1].name", Some("a/b")),
            (Some(7), "segments[1].size", Some("5Mi")),
            (Some(9), "segments[1].pgae", Some("pgae")),
            (Some(10), "registration.cap", Some("0")),
            (Some(11), "shutdown.graceSeconds", Some("4000")),
        ]
    );
    let many = "- {}\n".repeat(15);
    let message = refused(&format!("segments:\n{many}"));
    assert_eq!(message.lines().count(), 21);
    assert!(message.ends_with("\nand 10 more problems"), "{message}");
}

#[test]
fn the_builder_is_checked_alike() {
    let error = Config::builder()
        .segment(Segment::new("a/b", 0).page(Page::Size(3)).directory("x"))
        .segment(Segment::new("c", MAX_BYTES + 1))
        .grace_seconds(0)
        .build()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "segments[0].name: 'a/b' is not a segment's name: it has '/'; use lowercase letters, \
         digits and '-', e.g. 'a-b'\n\
         segments[0].page: '3' is not a page size: it is too small; the smallest is '4Ki'\n\
         segments[0].directory: 'x' is not an absolute path: it depends on where the process was \
         started; write e.g. '/run/siding/x'\n\
         segments[c].size: '9223372036854775808' is too large: the most is 9223372036854775807 \
         bytes (2^63-1); write less, e.g. '1Ti'\n\
         shutdown.graceSeconds: '0' is not a number of seconds from 1 to 3600; write whole \
         seconds, e.g. '30'"
    );
    assert_eq!(
        Config::builder().build().unwrap_err().to_string(),
        "segments: no segment is declared; declare at least one, e.g. segments: [{name: kv, size: \
         1Gi}]"
    );
}

#[test]
fn segments_of_the_command_line() {
    for (text, segment) in [
        ("kv=1Gi", Segment::new("kv", GIB)),
        (
            "kv=1.5Gi,page=2Mi",
            Segment::new("kv", 3 * GIB / 2).page(Page::Size(2 << 20)),
        ),
        (
            "a-1=8192,numa=3,page=transparent",
            Segment::new("a-1", 8192)
                .page(Page::Transparent)
                .numa(Numa::Node(3)),
        ),
        (
            "kv=4Ki,page=auto,numa=interleave",
            Segment::new("kv", 4096).numa(Numa::Interleave),
        ),
    ] {
        assert_eq!(text.parse::<Segment>().unwrap(), segment);
    }
    for (text, message) in [
        (
            "kv",
            "segment: 'kv' has no size; write NAME=SIZE, e.g. 'kv=1Gi'",
        ),
        (
            "",
            "segment: '' has no size; write NAME=SIZE, e.g. 'kv=1Gi'",
        ),
        (
            "A/B",
            "segment: 'A/B' has no size; write NAME=SIZE, e.g. 'kv=1Gi'",
        ),
        (
            "=1Gi",
            "segments[0].name: '' is not a segment's name: it is empty; use lowercase letters, \
             digits and '-', e.g. 'kv'",
        ),
        (
            "a/b=1Gi",
            "segments[0].name: 'a/b' is not a segment's name: it has '/'; use lowercase letters, \
             digits and '-', e.g. 'a-b'",
        ),
        (
            "kv=",
            "segments[kv].size: '' is not a quantity: it is empty; write digits and a unit, e.g. \
             '1Gi', '512Mi' or '100Gi'",
        ),
        (
            "kv=0Mi",
            "segments[kv].size: '0Mi' is no size: nothing to mount; write at least one page, e.g. \
             '4Ki'",
        ),
        (
            "kv=-1Gi",
            "segments[kv].size: '-1Gi' is negative; write '1Gi'",
        ),
        (
            "kv=5M,page=2Mi",
            "segments[kv].size: '5M' is not a whole number of pages of 2Mi; the nearest that \
             works: '4Mi' or '6Mi'",
        ),
        (
            "kv=1Gi,pgae=2Mi",
            "segments[kv].pgae: unknown field 'pgae'; did you mean 'page'?",
        ),
        (
            "kv=1Gi,cap=2",
            "segments[kv].cap: unknown field 'cap'; write 'page' or 'numa'",
        ),
        (
            "kv=1Gi,page",
            "segments[kv]: 'page' is not KEY=VALUE; write 'page=2Mi' or 'numa=0'",
        ),
        (
            "kv=1Gi,",
            "segments[kv]: '' is not KEY=VALUE; write 'page=2Mi' or 'numa=0'",
        ),
        (
            "kv=1Gi,page=2Mi,page=4Ki",
            "segments[kv].page: 'page' is given twice; give it once",
        ),
        (
            "kv=abc,page=3Mi,numa=x",
            "segments[kv].size: 'abc' is not a quantity: it must start with a digit; write digits \
             and a unit, e.g. '1Gi', '512Mi' or '100Gi'\n\
             segments[kv].page: '3Mi' is not a page size: it is not a power of two; write '2Mi' or \
             '4Mi'\n\
             segments[kv].numa: 'x' is not a NUMA policy; write 'local', 'interleave' or a node's \
             number, e.g. '0'",
        ),
    ] {
        assert_eq!(
            text.parse::<Segment>().unwrap_err().to_string(),
            message,
            "{text}"
        );
    }
}

#[test]
fn words_of_the_command_line() {
    assert_eq!("Unbounded".parse(), Ok(Cap::Unbounded));
    assert_eq!("auto".parse(), Ok(Cap::Auto));
    assert_eq!("16".parse(), Ok(Cap::Limit(n(16))));
    for backend in ["ioUring", "io_uring", "io-uring", "iouring", "IO_URING"] {
        assert_eq!(backend.parse(), Ok(Backend::IoUring));
    }
    assert_eq!("none".parse(), Ok(Backend::None));
    assert_eq!("given".parse(), Ok(Order::Declared));
    assert_eq!("text".parse(), Ok(LogFormat::Text));
    assert_eq!("2".parse(), Ok(TouchThreads::Count(n(2))));
    assert_eq!("64Ki".parse(), Ok(Page::Size(65_536)));
    assert_eq!("7".parse(), Ok(Numa::Node(7)));
    for (shown, text) in [
        (Cap::Auto.to_string(), "auto"),
        (Cap::Unbounded.to_string(), "unbounded"),
        (Cap::Limit(n(3)).to_string(), "3"),
        (TouchThreads::Count(n(3)).to_string(), "3"),
        (Page::Size(GIB).to_string(), "1Gi"),
        (Page::Transparent.to_string(), "transparent"),
        (Numa::Interleave.to_string(), "interleave"),
        (Numa::Node(1).to_string(), "1"),
    ] {
        assert_eq!(shown, text);
    }
}

#[test]
fn the_cap_of_the_environment() {
    let cap = |value: Option<&[u8]>| {
        let (cap, warning) = Cap::from_environment(value.map(OsStr::from_bytes));
        (cap, warning.map(|warning| warning.to_string()))
    };
    assert_eq!(cap(None), (Cap::Auto, None));
    assert_eq!(cap(Some(b"1")), (Cap::Limit(n(1)), None));
    assert_eq!(cap(Some(b"128")), (Cap::Limit(n(128)), None));
    assert_eq!(
        cap(Some(b"0")),
        (
            Cap::Unbounded,
            Some(
                "MC_MAX_CONCURRENT_REG_MR: '0' means unbounded: all registrations start at once; \
                 unset it for a cap that fits the cores, or set a number of at least 1"
                    .to_owned()
            )
        )
    );
    let ignored: [(&[u8], &str); 9] = [
        (b"", "'' is empty"),
        (b"abc", "'abc' is not a whole number"),
        (b"-1", "'-1' is not a whole number"),
        (b"8x", "'8x' is not a whole number"),
        (b"8 ", "'8 ' is not a whole number"),
        (b"8.5", "'8.5' is not a whole number"),
        (b"auto", "'auto' is not a whole number"),
        (
            b"99999999999999999999",
            "'99999999999999999999' is too large",
        ),
        (b"8\xff", "'8\u{fffd}' is not UTF-8"),
    ];
    for (value, why) in ignored {
        let message = format!(
            "MC_MAX_CONCURRENT_REG_MR: {why}: ignored, the default (auto) stays; set a whole \
             number (0 is unbounded), or unset it"
        );
        assert_eq!(cap(Some(value)), (Cap::Auto, Some(message)));
    }
}

#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("siding.yaml");
    let shown = path.display();
    let fails = |path: &Path| load(path).unwrap_err().to_string();

    assert_eq!(
        fails(&path),
        format!("{shown}: cannot be read (No such file or directory (os error 2)); check the path")
    );
    assert_eq!(
        fails(folder.path()),
        format!(
            "{}: is a directory; name the file, e.g. {shown}",
            folder.path().display()
        )
    );
    fs::write(&path, "").unwrap();
    assert_eq!(
        fails(&path),
        format!(
            "{shown}: segments: the file is empty: no segment is declared; declare at least one, \
             e.g. segments: [{{name: kv, size: 1Gi}}]"
        )
    );
    fs::write(&path, b"segments: \xff\xfe").unwrap();
    assert_eq!(
        fails(&path),
        format!("{shown}: byte 10 (0xff) is not UTF-8; save the file as UTF-8 text")
    );
    fs::write(&path, "segments:\n- name: kv\n  size: abc\n").unwrap();
    assert_eq!(
        fails(&path),
        format!(
            "{shown}:3: segments[kv].size: 'abc' is not a quantity: it must start with a digit; \
             write digits and a unit, e.g. '1Gi', '512Mi' or '100Gi'"
        )
    );
    fs::write(&path, KV).unwrap();
    assert_eq!(load(&path).unwrap(), parse(KV).unwrap());
    let too_large = |path: &Path| {
        let shown = path.display();
        format!(
            "{shown}: is larger than 1048576 bytes; a configuration has a few thousand: is it the \
             right file?"
        )
    };
    fs::write(&path, "[".repeat(10 << 20)).unwrap();
    assert_eq!(fails(&path), too_large(&path));
    // No length to go by: what is read is bounded too.
    assert_eq!(
        fails(Path::new("/dev/zero")),
        too_large(Path::new("/dev/zero"))
    );
}

/// Texts just under the limit, each on a stack of 256 KiB, none slow.
#[test]
fn bombs() {
    let deep =
        "values are nested deeper than 16 levels; a configuration has 4: is a bracket left open?";
    let many = "there are more than 20000 values up to here; a configuration has dozens: is it the right file?";
    let laughs: String = (1..30)
        .map(|level| {
            format!(
                "a{level}: &a{level} [{}]\n",
                format!("*a{},", level - 1).repeat(9)
            )
        })
        .collect();
    let steps = |count: usize| -> String {
        (0..count)
            .map(|line| format!("{}a:\n", " ".repeat(line)))
            .collect()
    };
    for (name, text, message) in [
        ("flow lists", "[".repeat(500_000), deep),
        ("flow mappings", "{a: ".repeat(250_000), deep),
        (
            "closed flow lists",
            "[".repeat(500_000) + &"]".repeat(500_000),
            deep,
        ),
        ("block lists", "- ".repeat(500_000), deep),
        ("block mappings", steps(1400), deep),
        (
            "a long list",
            "segments: [".to_owned() + &"a,".repeat(500_000),
            many,
        ),
        ("a long mapping", "a: b\n".repeat(200_000), many),
        ("laughs", format!("a0: &a0 [x]\n{laughs}"), deep),
        (
            "aliases",
            format!("a: &a b\nc: [{}]", "*a,".repeat(300_000)),
            many,
        ),
        (
            "a long number",
            format!("segments: [{{name: kv, size: {}}}]", "9".repeat(1_000_000)),
            "is too large",
        ),
        (
            "a long fraction",
            format!(
                "segments: [{{name: kv, size: 0.{}Ei}}]",
                "9".repeat(1_000_000)
            ),
            "is not a whole number of bytes",
        ),
        (
            "a long name",
            format!("segments: [{{name: {}, size: 1Gi}}]", "a".repeat(1_000_000)),
            "it has 1000000 characters",
        ),
        (
            "a long field",
            format!("? {}\n: b", "a".repeat(1_000_000)),
            "unknown field",
        ),
        (
            "unknown fields",
            (0..9000).map(|n| format!("a{n}: b\n")).collect(),
            "and 8981 more problems",
        ),
        (
            "unnamed segments",
            format!("segments:\n{}", "- {}\n".repeat(15_000)),
            "more problems",
        ),
        (
            "segments of one name",
            format!("segments:\n{}", "- {name: a, size: 0}\n".repeat(3000)),
            "more problems",
        ),
        (
            "open quotes",
            format!("a: \"{}", "\\\n".repeat(300_000)),
            "not YAML",
        ),
        ("colons", ":".repeat(1_000_000), "not YAML"),
    ] {
        let started = Instant::now();
        let work = thread::Builder::new()
            .stack_size(256 << 10)
            .spawn(move || refused(&text));
        let answer = work.unwrap().join().unwrap();
        assert!(answer.contains(message), "{name}: {answer}");
        assert!(
            answer.len() < 8192,
            "{name}: {} bytes of message",
            answer.len()
        );
        let seconds = started.elapsed();
        assert!(seconds < Duration::from_secs(10), "{name}: {seconds:?}");
    }
}

#[test]
fn what_a_failed_mount_does_is_one_of_two_words() {
    assert_eq!(
        refused(&format!("{KV}onFailure: ignore\n")),
        "line 2: onFailure: 'ignore' is not what a failed mount does; write 'exit' or 'serve'"
    );
}

/// The schema, the reader and the type name the same fields.
#[test]
fn the_schema_has_every_field() {
    let schema = schema();
    assert_eq!(schema["title"], "Configuration of siding");
    let written = serde_json::to_value(parse(KV).unwrap()).unwrap();
    for (section, fields) in read::SECTIONS {
        let (described, written) = match section {
            "" => (&schema, &written),
            "segments" => (&schema["$defs"]["Segment"], &written["segments"][0]),
            section => {
                let reference = schema["properties"][section]["$ref"].as_str().unwrap();
                (schema.pointer(&reference[1..]).unwrap(), &written[section])
            }
        };
        assert_eq!(described["additionalProperties"], false, "{section}");
        let keys = |value: &serde_json::Value| -> Vec<String> {
            value
                .as_object()
                .map(|map| map.keys().cloned().collect())
                .unwrap_or_default()
        };
        let mut expected: Vec<&str> = fields.to_vec();
        expected.sort_unstable();
        let (mut properties, mut serialized) = (keys(&described["properties"]), keys(written));
        properties.sort_unstable();
        serialized.sort_unstable();
        assert_eq!(properties, expected, "{section}");
        assert_eq!(serialized, expected, "{section}");
        for field in fields {
            let property = &described["properties"][field];
            assert!(
                property["description"].is_string(),
                "{section}.{field} is not described"
            );
            let required = section == "segments" && ["name", "size"].contains(field);
            assert_eq!(
                property.get("default").is_none(),
                required,
                "{section}.{field}"
            );
        }
    }
}

fn configs() -> impl Strategy<Value = Config> {
    let pages = prop::sample::select(vec![
        Page::Auto,
        Page::Transparent,
        Page::Size(4096),
        Page::Size(2 << 20),
        Page::Size(GIB),
    ]);
    let numa = prop_oneof![
        Just(Numa::Local),
        Just(Numa::Interleave),
        any::<u32>().prop_map(Numa::Node)
    ];
    let directory = prop::option::of("/[^\\x00]{0,20}");
    let segment = (1_u64..1 << 20, pages, numa, directory, "[a-z0-9]{1,8}");
    let caps = prop_oneof![
        Just(Cap::Auto),
        Just(Cap::Unbounded),
        (1_usize..).prop_map(|count| Cap::Limit(n(count)))
    ];
    let segments = prop::collection::vec(segment, 1..5);
    (
        segments,
        caps,
        1_u32..=3600,
        any::<SocketAddr>(),
        "\\PC{1,20}",
    )
        .prop_map(|(segments, cap, grace, http, level)| {
            let segments = segments.into_iter().enumerate().map(
                |(index, (gib, page, numa, directory, name))| {
                    let mut segment = Segment::new(format!("{name}-{index}"), gib * GIB)
                        .page(page)
                        .numa(numa);
                    segment.directory = directory.map(PathBuf::from);
                    segment
                },
            );
            let http = match http {
                SocketAddr::V6(v6) => SocketAddr::from((*v6.ip(), v6.port())),
                v4 => v4,
            };
            let builder = Config::builder()
                .segments(segments)
                .cap(cap)
                .grace_seconds(grace);
            builder.http(http).log_level(level).build().unwrap()
        })
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(config in configs()) {
        let text = to_yaml(&config).unwrap();
        let back = parse(&text);
        prop_assert!(back.is_ok(), "{}\n{}", text, back.unwrap_err());
        prop_assert_eq!(back.unwrap(), config);
    }

    #[test]
    fn no_text_panics(text in "(?s).{0,200}", fields in "[-{}\\[\\]:,&*!|>'\"#%@ a-z0-9\n]{0,200}") {
        for text in [&text, &fields, &format!("segments:\n- {fields}"), &format!("{KV}{fields}")] {
            if let Err(error) = parse(text) {
                prop_assert!(!error.problems().is_empty());
                prop_assert!(!error.to_string().is_empty());
            }
        }
        let _ = fields.parse::<Segment>();
    }
}
