//! A tree of files that stands for a machine in a test.

use std::fs;

use tempfile::TempDir;

use crate::root::Root;

/// A temporary root; gone when dropped.
pub(crate) struct Fixture {
    dir: TempDir,
}

impl Fixture {
    /// A root that holds `files`: path and text.
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let fixture = Self {
            dir: TempDir::new().unwrap(),
        };
        for (path, text) in files {
            fixture.write_bytes(path, text.as_bytes());
        }
        fixture
    }

    /// Adds or replaces one file.
    pub(crate) fn write(&self, path: &str, text: &str) {
        self.write_bytes(path, text.as_bytes());
    }

    /// Adds or replaces one file that need not be text.
    pub(crate) fn write_bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.root().path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// The root to read.
    pub(crate) fn root(&self) -> Root {
        Root::at(self.dir.path())
    }
}
