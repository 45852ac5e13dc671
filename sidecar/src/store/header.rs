//! The header of a segment's file: what tells a restarted process that the content is its own.
//!
//! It lies beside the storage directory's other small files and not in the segment itself: a file
//! on hugetlbfs takes no `write`, and a header page there would cost a whole huge page.

use serde::{Deserialize, Serialize};

/// The version that this release writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// The header, as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// The segment's name.
    pub name: String,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Its pages: `4Ki`, `2Mi`, `transparent`, ….
    pub page: String,
    /// User id that made it.
    pub owner: u32,
    /// How often the segment was made anew.
    pub generation: u64,
    /// Random, the same for as long as the content is kept.
    pub identity: String,
    /// Path of the segment's file.
    pub file: String,
    /// The file's device and inode: a file put there by someone else has others.
    pub device: u64,
    /// See `device`.
    pub inode: u64,
}

/// What is found about a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its length, bytes.
    pub len_bytes: u64,
    /// Bytes that have pages behind them.
    pub allocated_bytes: u64,
    /// Owner.
    pub owner: u32,
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

/// What a segment should be.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// The pages it is asked to have; `None` where any will do.
    pub page: Option<&'a str>,
    /// This process's user id.
    pub owner: u32,
}

/// Whether the file is the complete segment that is expected; if not, why.
///
/// # Errors
/// The reason, in words for a log line.
pub fn check(header: &Header, found: Found, expected: Expected<'_>) -> Result<(), String> {
    let differ = |what: &str, is: &dyn std::fmt::Display, should: &dyn std::fmt::Display| {
        Err(format!("its {what} is {is}, not {should}"))
    };
    if header.version != VERSION {
        return differ("header's version", &header.version, &VERSION);
    }
    if header.name != expected.name {
        return differ("name", &header.name, &expected.name);
    }
    if header.size_bytes != expected.size_bytes {
        return differ("size", &header.size_bytes, &expected.size_bytes);
    }
    if let Some(page) = expected.page.filter(|page| *page != header.page) {
        return differ("page size", &header.page, &page);
    }
    if header.owner != expected.owner || found.owner != expected.owner {
        let owner = if header.owner == expected.owner {
            found.owner
        } else {
            header.owner
        };
        return differ("owner", &owner, &expected.owner);
    }
    if (header.device, header.inode) != (found.device, found.inode) {
        return Err("it is another file than the one that was made".to_owned());
    }
    if found.len_bytes != header.size_bytes {
        return differ("length", &found.len_bytes, &header.size_bytes);
    }
    if found.allocated_bytes < header.size_bytes {
        return differ(
            "number of bytes with pages behind them",
            &found.allocated_bytes,
            &header.size_bytes,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            version: VERSION,
            name: "kv".to_owned(),
            size_bytes: 4096,
            page: "4Ki".to_owned(),
            owner: 1000,
            generation: 3,
            identity: "a".to_owned(),
            file: "/dev/shm/kv".to_owned(),
            device: 7,
            inode: 8,
        }
    }

    const FOUND: Found = Found {
        len_bytes: 4096,
        allocated_bytes: 4096,
        owner: 1000,
        device: 7,
        inode: 8,
    };
    const EXPECTED: Expected<'_> = Expected {
        name: "kv",
        size_bytes: 4096,
        page: Some("4Ki"),
        owner: 1000,
    };

    #[test]
    fn the_segment_that_was_made_passes() {
        assert_eq!(check(&header(), FOUND, EXPECTED), Ok(()));
        assert_eq!(
            check(
                &header(),
                FOUND,
                Expected {
                    page: None,
                    ..EXPECTED
                }
            ),
            Ok(())
        );
    }

    #[test]
    fn anything_else_does_not_and_says_why() {
        let cases: [(Header, Found, Expected<'_>, &str); 11] = [
            (
                Header {
                    version: 2,
                    ..header()
                },
                FOUND,
                EXPECTED,
                "its header's version is 2, not 1",
            ),
            (
                header(),
                FOUND,
                Expected {
                    name: "x",
                    ..EXPECTED
                },
                "its name is kv, not x",
            ),
            (
                header(),
                FOUND,
                Expected {
                    size_bytes: 8192,
                    ..EXPECTED
                },
                "its size is 4096, not 8192",
            ),
            (
                header(),
                FOUND,
                Expected {
                    page: Some("2Mi"),
                    ..EXPECTED
                },
                "its page size is 4Ki, not 2Mi",
            ),
            (
                header(),
                FOUND,
                Expected {
                    owner: 0,
                    ..EXPECTED
                },
                "its owner is 1000, not 0",
            ),
            (
                header(),
                Found { owner: 5, ..FOUND },
                EXPECTED,
                "its owner is 5, not 1000",
            ),
            (
                Header {
                    owner: 5,
                    ..header()
                },
                FOUND,
                EXPECTED,
                "its owner is 5, not 1000",
            ),
            (
                header(),
                Found { inode: 9, ..FOUND },
                EXPECTED,
                "it is another file than the one that was made",
            ),
            (
                header(),
                Found { device: 9, ..FOUND },
                EXPECTED,
                "it is another file than the one that was made",
            ),
            (
                header(),
                Found {
                    len_bytes: 1,
                    ..FOUND
                },
                EXPECTED,
                "its length is 1, not 4096",
            ),
            (
                header(),
                Found {
                    allocated_bytes: 0,
                    ..FOUND
                },
                EXPECTED,
                "its number of bytes with pages behind them is 0, not 4096",
            ),
        ];
        for (header, found, expected, why) in cases {
            assert_eq!(check(&header, found, expected), Err(why.to_owned()));
        }
    }
}
