//! The plan's file: what the kubelet mounts of an annotation, and swaps when that changes.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use siding_crds::plan::NodePlan;

/// The largest file that is read, bytes: all annotations of an object together are smaller.
const MAX_BYTES: u64 = 1 << 20;

/// A file with a plan, and what it held when it was last looked at.
#[derive(Debug)]
pub struct PlanFile {
    path: PathBuf,
    last: Option<Result<String, String>>,
}

impl PlanFile {
    /// The file at this path, not looked at yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, last: None }
    }

    /// Looks at it; `None` where it is as it was. The error names the file and what is wrong.
    pub fn look(&mut self) -> Option<Result<NodePlan, String>> {
        let now = self.read();
        if self.last.as_ref() == Some(&now) {
            return None;
        }
        let plan = now.clone().and_then(|text| self.parse(&text));
        self.last = Some(now);
        Some(plan)
    }

    fn parse(&self, text: &str) -> Result<NodePlan, String> {
        if text.trim().is_empty() {
            return Err(self.wrong("it is empty: the pod has no such annotation"));
        }
        NodePlan::parse(text).map_err(|error| self.wrong(&error.to_string()))
    }

    fn read(&self) -> Result<String, String> {
        let failed = |error: io::Error| self.wrong(&error.to_string());
        let mut text = String::new();
        let file = File::open(&self.path).map_err(failed)?;
        let read = file
            .take(MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(failed)?;
        if read as u64 > MAX_BYTES {
            return Err(self.wrong("it is larger than 1 MiB"));
        }
        Ok(text)
    }

    fn wrong(&self, why: &str) -> String {
        format!("the plan {} is not read: {why}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const SEED: &str = r#"{"version":1,"source":"Seed","cap":3,"capReason":"small"}"#;

    #[test]
    fn a_change_is_told_once_and_what_is_wrong_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        let mut file = PlanFile::new(path.clone());
        for (content, said) in [
            (None, "No such file"),
            (Some(""), "it is empty: the pod has no such annotation"),
            (Some("\n"), "it is empty: the pod has no such annotation"),
            (Some("{"), "not readable: EOF"),
            (
                Some(r#"{"version":1,"source":"Seed","cap":0,"capReason":""}"#),
                "not readable: ",
            ),
            (Some(r#"{"version":9}"#), "version 9 is newer than 1"),
        ] {
            if let Some(content) = content {
                fs::write(&path, content).unwrap();
            }
            let error = file.look().unwrap().unwrap_err();
            assert!(
                error.contains(said) && error.contains("plan.json"),
                "{error}"
            );
            assert!(file.look().is_none());
        }
        fs::write(&path, SEED).unwrap();
        assert_eq!(file.look().unwrap().unwrap().cap.get(), 3);
        assert!(file.look().is_none());
        fs::write(&path, vec![b' '; (1 << 20) + 1]).unwrap();
        assert!(
            file.look()
                .unwrap()
                .unwrap_err()
                .contains("larger than 1 MiB")
        );
    }

    /// As the kubelet does it: files below a link to a folder that is swapped.
    #[test]
    fn a_swapped_folder_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, cap) in [("..1", "3"), ("..2", "4")] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("plan.json"), SEED.replace('3', cap)).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/plan.json", at("plan.json")).unwrap();
        let mut file = PlanFile::new(at("plan.json"));
        assert_eq!(file.look().unwrap().unwrap().cap.get(), 3);
        symlink("..2", at("..tmp")).unwrap();
        fs::rename(at("..tmp"), at("..data")).unwrap();
        assert_eq!(file.look().unwrap().unwrap().cap.get(), 4);
    }
}
