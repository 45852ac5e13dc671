//! The buffers that clients may read and write, by address.

use std::sync::{Arc, PoisonError, RwLock};

use siding_fabric::Window;
use siding_wire::descriptor::Buffer;

/// A buffer to publish.
#[derive(Debug, Clone)]
pub struct PublishedBuffer {
    /// Its location, such as `cpu:0`; never empty.
    pub location: String,
    /// The address that clients know its first byte by: not 0; any space will do.
    pub address: u64,
    /// Its memory.
    pub window: Window,
}

impl PublishedBuffer {
    /// The address after its last byte.
    fn end(&self) -> u64 {
        self.address.saturating_add(self.window.len_bytes())
    }
}

/// Why a buffer can't be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// It has no location.
    #[error("the buffer at {address:#x} has no location; 'cpu:0' is one")]
    NoLocation {
        /// Its address.
        address: u64,
    },
    /// It starts at 0, has no bytes, or goes beyond the last address.
    #[error(
        "a buffer of {length_bytes} bytes can't be at {address:#x}: it needs bytes, an address \
         other than 0, and room up to the last address"
    )]
    Address {
        /// Its address.
        address: u64,
        /// Its length, bytes.
        length_bytes: u64,
    },
    /// It overlaps another.
    #[error("the buffer at {address:#x} overlaps the one at {other:#x}")]
    Overlap {
        /// Its address.
        address: u64,
        /// The other's address.
        other: u64,
    },
}

/// The table of published buffers. Cheap to clone; clones are the same table.
///
/// It may change while connections are open: each request looks once, and keeps the memory that it
/// found mapped until it is done.
#[derive(Debug, Clone, Default)]
pub struct Published {
    /// Ascending by address, without overlaps.
    table: Arc<RwLock<Arc<[PublishedBuffer]>>>,
}

impl Published {
    /// Replaces the whole table at once.
    ///
    /// # Errors
    /// [`PublishError`]; the table stays as it was then.
    pub fn replace(&self, mut buffers: Vec<PublishedBuffer>) -> Result<(), PublishError> {
        buffers.sort_by_key(|buffer| buffer.address);
        for buffer in &buffers {
            check(buffer)?;
        }
        if let Some(pair) = buffers
            .windows(2)
            .find(|pair| pair[0].end() > pair[1].address)
        {
            return Err(PublishError::Overlap {
                address: pair[1].address,
                other: pair[0].address,
            });
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = buffers.into();
        Ok(())
    }

    /// Withdraws all. Requests that are under way end as they would have.
    pub fn clear(&self) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new([]);
    }

    /// The memory of a range that lies inside one buffer; of an empty range there is none.
    #[must_use]
    pub fn find(&self, address: u64, size_bytes: u64) -> Option<Window> {
        if size_bytes == 0 {
            return None;
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let after = table.partition_point(|buffer| buffer.address <= address);
        let buffer = table.get(after.checked_sub(1)?)?;
        let offset = address - buffer.address;
        buffer.window.part(offset, size_bytes).ok()
    }

    /// The table as a descriptor has it.
    #[must_use]
    pub fn buffers(&self) -> Vec<Buffer> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table
            .iter()
            .map(|buffer| {
                let length_bytes = buffer.window.len_bytes();
                Buffer::tcp(&buffer.location, buffer.address, length_bytes)
            })
            .collect()
    }
}

fn check(buffer: &PublishedBuffer) -> Result<(), PublishError> {
    let (address, length_bytes) = (buffer.address, buffer.window.len_bytes());
    if buffer.location.is_empty() {
        return Err(PublishError::NoLocation { address });
    }
    if address == 0 || length_bytes == 0 || address.checked_add(length_bytes).is_none() {
        return Err(PublishError::Address {
            address,
            length_bytes,
        });
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use siding_fabric::{MapRequest, Mapping, Pages, Placement, Source};

    use super::*;

    const PAGE: u64 = 4096;

    fn buffer(address: u64) -> PublishedBuffer {
        let mapping = Mapping::new(MapRequest {
            len_bytes: PAGE,
            pages: Pages::Base,
            placement: Placement::Any,
            source: Source::Process,
        });
        PublishedBuffer {
            location: "cpu:0".to_owned(),
            address,
            window: Window::whole(Arc::new(mapping.unwrap())),
        }
    }

    #[test]
    fn a_range_is_found_inside_one_buffer_only() {
        let published = Published::default();
        // The first two touch each other: a range over both is inside neither.
        let (one, two, far) = (buffer(0x1000), buffer(0x2000), buffer(u64::MAX - PAGE));
        let bases = [&one, &two, &far].map(|buffer| buffer.window.address());
        published.replace(vec![far, two, one]).unwrap();
        for (address, size, want) in [
            (0x1000, PAGE, Some(bases[0])),
            (0x1fff, 1, Some(bases[0] + 0xfff)),
            (0x2000, 1, Some(bases[1])),
            (u64::MAX - 1, 1, Some(bases[2] + PAGE - 1)),
            (0x1000, 0, None),
            (0x0fff, 1, None),
            (0x0fff, 2, None),
            (0x1fff, 2, None),
            (0x1000, PAGE + 1, None),
            (0x3000, 1, None),
            (u64::MAX, 1, None),
            (u64::MAX - 1, 2, None),
            (0x1800, u64::MAX, None),
            (0, u64::MAX, None),
        ] {
            let found = published.find(address, size);
            let found = found.map(|window| {
                assert_eq!(window.len_bytes(), size);
                window.address()
            });
            assert_eq!(found, want, "{address:#x} {size}");
        }
        assert_eq!(published.buffers()[0], Buffer::tcp("cpu:0", 0x1000, PAGE));
        published.clear();
        assert!(published.find(0x1000, 1).is_none());
        assert_eq!(published.buffers(), []);
    }

    #[test]
    fn a_table_that_can_not_be_leaves_the_old_one() {
        let published = Published::default();
        published.replace(vec![buffer(0x1000)]).unwrap();
        let overlap = published.replace(vec![buffer(0x2fff), buffer(0x2000)]);
        assert_eq!(
            overlap.unwrap_err().to_string(),
            "the buffer at 0x2fff overlaps the one at 0x2000"
        );
        for address in [0, u64::MAX - PAGE + 1] {
            let error = published.replace(vec![buffer(address)]).unwrap_err();
            assert_eq!(
                error,
                PublishError::Address {
                    address,
                    length_bytes: PAGE
                }
            );
        }
        let nowhere = PublishedBuffer {
            location: String::new(),
            ..buffer(0x9000)
        };
        assert_eq!(
            published.replace(vec![nowhere]),
            Err(PublishError::NoLocation { address: 0x9000 })
        );
        assert!(published.find(0x1000, PAGE).is_some());
        assert_eq!(published.buffers().len(), 1);
    }
}
