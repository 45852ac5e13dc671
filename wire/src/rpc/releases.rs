//! What differs from release to release: a table recorded from real traffic, see
//! `tests/mooncake/record-releases`.

use super::pack::{DecodeError, EncodeError, Prefix, Reader, Value};
use super::{ClientStatus, Id, Outcome, Pong, Segment};

const TABLE: &str = include_str!("releases.tsv");
const COLUMNS: usize = 11;
/// Zeros after a probe's types: more than the values of any release's put take.
const PROBE_ZEROS: [u8; 128] = [0; 128];

/// A line of the table that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("releases.tsv, line {line}: {what}; tests/mooncake/record-releases makes it anew")]
pub struct TableError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// A call of the master's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Whether it serves.
    ServiceReady,
    /// Mounts one segment.
    MountSegment,
    /// Mounts all segments of a client that the master does not know, or no longer.
    ReMountSegment,
    /// The heartbeat.
    Ping,
    /// Takes a segment away, and the objects in it.
    UnmountSegment,
    /// Begins a put. Only used to tell releases apart: see [`Release::probe`].
    PutStart,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ServiceReady,
        Self::MountSegment,
        Self::ReMountSegment,
        Self::Ping,
        Self::UnmountSegment,
        Self::PutStart,
    ];

    /// Its name in Mooncake.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServiceReady => "ServiceReady",
            Self::MountSegment => "MountSegment",
            Self::ReMountSegment => "ReMountSegment",
            Self::Ping => "Ping",
            Self::UnmountSegment => "UnmountSegment",
            Self::PutStart => "PutStart",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Id,
    Name,
    Base,
    SizeBytes,
    TeEndpoint,
    Protocol,
    HostId,
}

impl Field {
    const ALL: [(&'static str, Self); 7] = [
        ("id", Self::Id),
        ("name", Self::Name),
        ("base", Self::Base),
        ("size_bytes", Self::SizeBytes),
        ("te_endpoint", Self::TeEndpoint),
        ("protocol", Self::Protocol),
        ("host_id", Self::HostId),
    ];

    fn push<'a>(self, segment: &'a Segment, values: &mut Vec<Value<'a>>) {
        match self {
            Self::Id => push_id(segment.id, values),
            Self::Name => values.push(Value::Text(&segment.name)),
            Self::Base => values.push(Value::Number(segment.base)),
            Self::SizeBytes => values.push(Value::Number(segment.size_bytes)),
            Self::TeEndpoint => values.push(Value::Text(&segment.te_endpoint)),
            Self::Protocol => values.push(Value::Text(&segment.protocol)),
            Self::HostId => values.push(Value::Text(&segment.host_id)),
        }
    }
}

fn push_id(id: Id, values: &mut Vec<Value<'_>>) {
    values.extend([Value::Number(id.0), Value::Number(id.1)]);
}

/// How one call of one release looks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Format {
    call: Call,
    function: u32,
    /// `None`: the request has no body.
    request: Option<Prefix>,
    answer: Prefix,
    /// What follows the arguments: fields that the release may leave out, and does.
    trailing: Vec<u8>,
    /// The order of a segment's fields.
    segment: Vec<Field>,
}

/// A call, ready to be framed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Number of the function.
    pub function: u32,
    /// The arguments.
    pub body: Vec<u8>,
}

/// A question that changes nothing and that only some releases understand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe(pub Request);

/// A release, or several that speak alike in every call of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    versions: Vec<String>,
    formats: [Format; Call::ALL.len()],
}

/// `0.3.12`, or `0.3.12 or 0.3.12.post1` where these speak alike.
impl std::fmt::Display for Release {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.versions.join(" or "))
    }
}

impl Release {
    /// The releases that speak so, oldest first.
    #[must_use]
    pub fn versions(&self) -> &[String] {
        &self.versions
    }

    fn format(&self, call: Call) -> &Format {
        // As `formats` is made in the order of `Call::ALL`, which is the order of declaration.
        &self.formats[call as usize]
    }

    fn request<'a>(
        &'a self,
        call: Call,
        mut values: Vec<Value<'a>>,
    ) -> Result<Request, EncodeError> {
        let format = self.format(call);
        values.push(Value::Raw(&format.trailing));
        let body = match &format.request {
            Some(prefix) => prefix.encode(&values)?,
            None => Vec::new(),
        };
        let function = format.function;
        Ok(Request { function, body })
    }

    /// Whether the master serves.
    ///
    /// # Errors
    /// None: it has no arguments that could be too long.
    pub fn service_ready(&self) -> Result<Request, EncodeError> {
        self.request(Call::ServiceReady, Vec::new())
    }

    /// Mounts one segment.
    ///
    /// # Errors
    /// [`EncodeError`] where its names are too long.
    pub fn mount(&self, segment: &Segment, client_id: Id) -> Result<Request, EncodeError> {
        let mut values = Vec::new();
        for field in &self.format(Call::MountSegment).segment {
            field.push(segment, &mut values);
        }
        push_id(client_id, &mut values);
        self.request(Call::MountSegment, values)
    }

    /// Mounts all segments of a client that the master does not know.
    ///
    /// # Errors
    /// [`EncodeError`] where there are too many of them.
    pub fn remount(&self, segments: &[Segment], client_id: Id) -> Result<Request, EncodeError> {
        let mut values = vec![Value::Count(segments.len())];
        for segment in segments {
            for field in &self.format(Call::ReMountSegment).segment {
                field.push(segment, &mut values);
            }
        }
        push_id(client_id, &mut values);
        self.request(Call::ReMountSegment, values)
    }

    /// Says that the client lives.
    ///
    /// # Errors
    /// None: it has no arguments that could be too long.
    pub fn ping(&self, client_id: Id) -> Result<Request, EncodeError> {
        let mut values = Vec::new();
        push_id(client_id, &mut values);
        self.request(Call::Ping, values)
    }

    /// Takes a segment away, and the objects in it.
    ///
    /// # Errors
    /// None: it has no arguments that could be too long.
    pub fn unmount(&self, segment_id: Id, client_id: Id) -> Result<Request, EncodeError> {
        let mut values = Vec::new();
        push_id(segment_id, &mut values);
        push_id(client_id, &mut values);
        self.request(Call::UnmountSegment, values)
    }

    /// A put of nothing to nowhere: a master of this release reads it, refuses it and changes
    /// nothing; one that has other structs cannot read it.
    ///
    /// A put's structs change most often. A node never puts, but its peers do, and a master that does
    /// not understand theirs fails every put without a word to the node.
    ///
    /// # Errors
    /// None: it is short.
    pub fn probe(&self) -> Result<Probe, EncodeError> {
        let format = self.format(Call::PutStart);
        let prefix = format.request.clone().map(|prefix| Prefix {
            // So read by releases that tell the length and by those that do not.
            is_sized: false,
            ..prefix
        });
        let body = match prefix {
            Some(prefix) => prefix.encode(&[Value::Raw(&PROBE_ZEROS)])?,
            None => Vec::new(),
        };
        let function = format.function;
        Ok(Probe(Request { function, body }))
    }

    /// Whether this is the body of its answer to its own probe.
    #[must_use]
    pub fn answered_probe(&self, body: &[u8]) -> bool {
        Prefix::split(body).is_ok_and(|(found, _)| found == self.format(Call::PutStart).answer)
    }

    /// The answer to [`Release::mount`], [`Release::remount`] and [`Release::unmount`].
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn read_done(&self, body: &[u8]) -> Result<Outcome<()>, DecodeError> {
        self.outcome(Call::MountSegment, body, |_| Ok(()))
    }

    /// The answer to [`Release::ping`].
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn read_pong(&self, body: &[u8]) -> Result<Outcome<Pong>, DecodeError> {
        self.outcome(Call::Ping, body, |values| {
            let view = values.i64("view")?;
            let status = match values.i32("client's status")? {
                1 => ClientStatus::Known,
                2 => ClientStatus::MountAgain,
                other => ClientStatus::Other(other),
            };
            Ok(Pong { view, status })
        })
    }

    /// The answer to [`Release::service_ready`]: the version of the protocol, which is the same for
    /// releases that do not understand each other.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn read_ready(&self, body: &[u8]) -> Result<Outcome<String>, DecodeError> {
        self.outcome(Call::ServiceReady, body, |values| values.text("version"))
    }

    fn outcome<T>(
        &self,
        call: Call,
        body: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
    ) -> Result<Outcome<T>, DecodeError> {
        let mut values = self.format(call).answer.decode(body)?;
        if values.is_some("mark of success")? {
            Ok(Outcome::Done(read(&mut values)?))
        } else {
            Ok(Outcome::Refused(values.i32("error code")?))
        }
    }
}

/// What a master says that did not call the function: `invalid rpc arg`, ….
///
/// # Errors
/// [`DecodeError`].
pub fn read_refusal(body: &[u8]) -> Result<String, DecodeError> {
    let (_, mut values) = Prefix::split(body)?;
    values.text("reason")
}

/// The releases that are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Releases(Vec<Release>);

impl Releases {
    /// Those that were recorded.
    ///
    /// # Errors
    /// [`TableError`]: never for the table that is built in, which the tests read.
    pub fn recorded() -> Result<Self, TableError> {
        Self::parse(TABLE)
    }

    /// Reads a table.
    ///
    /// # Errors
    /// [`TableError`] at the first line that cannot be used.
    pub fn parse(table: &str) -> Result<Self, TableError> {
        let mut releases: Vec<Release> = Vec::new();
        let mut lines = table
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .skip(1)
            .peekable();
        while let Some(&(number, line)) = lines.peek() {
            let version = line.split('\t').next().unwrap_or_default().to_owned();
            let mut formats = Vec::new();
            while let Some(&(number, line)) = lines.peek() {
                if line.split('\t').next() != Some(version.as_str()) {
                    break;
                }
                lines.next();
                let at = |what| TableError { line: number, what };
                formats.push(format(line).map_err(at)?);
            }
            let missing = Call::ALL.iter().find(|call| {
                formats
                    .iter()
                    .filter(|format| format.call == **call)
                    .count()
                    != 1
            });
            if let Some(call) = missing {
                let what = format!("{version} needs exactly one {}", call.as_str());
                return Err(TableError { line: number, what });
            }
            formats.sort_by_key(|format| format.call as usize);
            let Ok(formats) = <[Format; Call::ALL.len()]>::try_from(formats) else {
                let what = format!("{version} has more calls than {}", Call::ALL.len());
                return Err(TableError { line: number, what });
            };
            match releases
                .iter_mut()
                .find(|release| release.formats == formats)
            {
                Some(alike) => alike.versions.push(version),
                None => releases.push(Release {
                    versions: vec![version],
                    formats,
                }),
            }
        }
        Ok(Self(releases))
    }

    /// All, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Release> {
        self.0.iter()
    }

    /// The questions that tell them apart, each once.
    ///
    /// # Errors
    /// As [`Release::probe`].
    pub fn probes(&self) -> Result<Vec<Probe>, EncodeError> {
        let mut probes = Vec::new();
        for release in &self.0 {
            let probe = release.probe()?;
            if !probes.contains(&probe) {
                probes.push(probe);
            }
        }
        Ok(probes)
    }

    /// The release that answers this probe so.
    #[must_use]
    pub fn of_answer(&self, probe: &Probe, body: &[u8]) -> Option<&Release> {
        self.0.iter().find(|release| {
            release.probe().is_ok_and(|own| own == *probe) && release.answered_probe(body)
        })
    }

    /// All versions, for a message: `0.3.10.post2, 0.3.11, …`.
    #[must_use]
    pub fn versions(&self) -> String {
        let versions: Vec<&str> = self
            .iter()
            .flat_map(|release| release.versions.iter().map(String::as_str))
            .collect();
        versions.join(", ")
    }
}

fn format(line: &str) -> Result<Format, String> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [
        _,
        call,
        function,
        hash,
        types,
        length,
        answer_hash,
        answer_types,
        answer_length,
        trailing,
        segment,
    ] = columns[..]
    else {
        return Err(format!("{} columns, not {COLUMNS}", columns.len()));
    };
    let call = Call::ALL
        .into_iter()
        .find(|known| known.as_str() == call)
        .ok_or_else(|| format!("{call:?} is no call that is known"))?;
    let function = u32::from_str_radix(function, 16)
        .map_err(|error| format!("function {function:?}: {error}"))?;
    let request = match (hash, types, length) {
        ("-", "-", "-") => None,
        _ => Some(prefix(hash, types, length)?),
    };
    let segment = match segment {
        "-" => Vec::new(),
        names => names.split(',').map(field).collect::<Result<_, _>>()?,
    };
    let mounts = matches!(call, Call::MountSegment | Call::ReMountSegment);
    if mounts == segment.is_empty() {
        return Err(format!("{} with the fields {segment:?}", call.as_str()));
    }
    Ok(Format {
        call,
        function,
        request,
        answer: prefix(answer_hash, answer_types, answer_length)?,
        trailing: match trailing {
            "-" => Vec::new(),
            bytes => hex(bytes)?,
        },
        segment,
    })
}

fn field(name: &str) -> Result<Field, String> {
    Field::ALL
        .into_iter()
        .find_map(|(known, field)| (known == name).then_some(field))
        .ok_or_else(|| format!("{name:?} is no field of a segment that is known"))
}

fn prefix(hash: &str, types: &str, length: &str) -> Result<Prefix, String> {
    let hash =
        <[u8; 4]>::try_from(hex(hash)?).map_err(|_| format!("hash {hash:?} is not 4 bytes"))?;
    let types = hex(types)?;
    if types.iter().position(|byte| *byte == 0) != types.len().checked_sub(1) {
        return Err("types that do not end with their only zero".to_owned());
    }
    let is_sized = match length {
        "sized" => true,
        "plain" => false,
        other => return Err(format!("length {other:?} is neither sized nor plain")),
    };
    Ok(Prefix {
        hash,
        types,
        is_sized,
    })
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let bad = || format!("{text:?} is not hexadecimal");
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return Err(bad());
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| bad()))
        .collect()
}
