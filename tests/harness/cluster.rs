//! A real Kubernetes for the tests: `tests/cluster/cluster`, up while the tests of one binary run.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{PATIENCE, Said};

/// Pages of 2 MiB that the machine gets for the cluster, on top of those that it has.
pub const HUGE_PAGES_2MI: u32 = 400;

/// The image with a shell that the cluster brings along.
pub const BUSYBOX: &str = "siding.test/busybox:1";

/// The cluster. It holds the lock of [`crate::whole_machine`], which its tests therefore must not ask for.
pub struct Cluster {
    /// Where its files are, such as its logs.
    pub directory: PathBuf,
}

impl Cluster {
    /// Brings it up where no test of this process has done so. It goes down when the process ends, however
    /// that ends. One that is up already, for trying things out, is taken as it is, and stays.
    ///
    /// # Panics
    /// Where it does not come up, with what it said.
    #[must_use]
    pub fn up() -> &'static Self {
        static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
        CLUSTER
            .get_or_init(Self::start)
            .as_ref()
            .unwrap_or_else(|error| panic!("no cluster: {error}"))
    }

    fn start() -> Result<Self, String> {
        let pages = HUGE_PAGES_2MI.to_string();
        let pid = std::process::id().to_string();
        let up = Said::of(script().args(["up", "--huge-pages-2mi", &pages, "--while-pid", &pid]));
        if !matches!(up.code, Some(0 | 4)) {
            return Err(up.err);
        }
        let said = Said::of(script().arg("kubeconfig"));
        if said.code != Some(0) {
            return Err(said.err);
        }
        let kubeconfig = PathBuf::from(said.out.trim());
        let directory = kubeconfig
            .parent()
            .ok_or("its kubeconfig is in no directory")?;
        Ok(Self {
            directory: directory.into(),
        })
    }

    /// Runs kubectl, as an administrator.
    #[must_use]
    pub fn kubectl(&self, arguments: &[&str]) -> Said {
        Said::of(self.inside("kubectl").args(arguments))
    }

    /// Runs Helm, as an administrator.
    #[must_use]
    pub fn helm(&self, arguments: &[&str]) -> Said {
        Said::of(self.inside("helm").args(arguments))
    }

    /// A command in the cluster's namespaces, where pods and Services are reached by their addresses. It ends with
    /// the cluster at the latest.
    #[must_use]
    pub fn inside(&self, command: &str) -> Command {
        let mut inside = script();
        inside.args(["exec", command]);
        inside
    }

    /// An object, or a list of them, as the API gives it.
    ///
    /// # Panics
    /// Where kubectl fails.
    #[must_use]
    pub fn get(&self, arguments: &[&str]) -> Value {
        self.kubectl(&[&["get", "-o", "json"], arguments].concat())
            .json()
    }

    /// Applies a manifest; what was said tells whether the API server took it.
    #[must_use]
    pub fn try_apply(&self, manifest: &str) -> Said {
        let mut command = self.inside("kubectl");
        command
            .args(["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(manifest.as_bytes()).unwrap();
        drop(input);
        Said::from(child.wait_with_output().unwrap())
    }

    /// Applies a manifest.
    ///
    /// # Panics
    /// Where the API server does not take it.
    pub fn apply(&self, manifest: &str) {
        let said = self.try_apply(manifest);
        assert_eq!(said.code, Some(0), "{}\n{manifest}", said.err);
    }

    /// Waits for an object until a condition holds, written as for `kubectl wait --for`.
    ///
    /// # Panics
    /// Where it does not come to pass, with what is known of the object: its description, logs and events.
    pub fn wait_for(&self, namespace: &str, object: &str, condition: &str, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let wait = format!("--for={condition}");
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = format!("--timeout={}s", left.as_secs().max(1));
            let said = self.kubectl(&["-n", namespace, "wait", object, &wait, &limit]);
            if said.code == Some(0) {
                return;
            }
            // It fails at once for an object that is not there yet.
            if Instant::now() >= deadline {
                let mut all = said.err;
                for question in [
                    &["describe", object][..],
                    &["logs", object, "--all-containers", "--prefix", "--tail=20"],
                    &["get", "events", "--sort-by=.lastTimestamp"],
                ] {
                    let said = self.kubectl(&[&["-n", namespace], question].concat());
                    let _ = write!(all, "\n{}{}", said.out, said.err);
                }
                panic!("{namespace} {object} is not {condition}: {all}");
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Makes an OCI archive's image one that pods can run.
    ///
    /// # Panics
    /// Where it can't be loaded.
    pub fn load_image(&self, archive: &Path) {
        let said = Said::of(script().arg("images").arg(archive));
        assert_eq!(said.code, Some(0), "{}", said.err);
    }

    /// The requests that the API server has served so far, one audit event each.
    #[must_use]
    pub fn audit(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(self.directory.join("audit.log")).unwrap();
        // The last line may be half written.
        log.lines()
            .map_while(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// A new namespace whose name starts so, in which pods can be made at once.
    #[must_use]
    pub fn namespace(&'static self, name: &str) -> Namespace {
        // A cluster that stays up may still be busy with the deletion of an earlier run's.
        let name = format!("{name}-{}", std::process::id());
        let said = self.kubectl(&["create", "namespace", &name]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        self.wait_for(&name, "serviceaccount/default", "create", PATIENCE);
        self.adopted(&name)
    }

    /// A namespace that a manifest makes, to be deleted on drop as the others.
    #[must_use]
    pub fn adopted(&'static self, name: &str) -> Namespace {
        Namespace {
            cluster: self,
            name: name.to_owned(),
        }
    }
}

/// A namespace of the cluster. Deleted on drop, with all that is in it.
pub struct Namespace {
    cluster: &'static Cluster,
    name: String,
}

impl Namespace {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self
            .cluster
            .kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

/// Makes an image with this binary alone and loads it, so that pods can run it by this name.
///
/// # Panics
/// Where the image can't be made.
pub fn load_binary(cluster: &Cluster, name: &str, binary: &Path) {
    let scratch = crate::scratch();
    let archive = scratch.path().join("image.tar");
    let mut make = Command::new(root().join("images/make"));
    let said = Said::of(make.arg(name).arg(&archive).arg("--binary").arg(binary));
    assert_eq!(said.code, Some(0), "{}", said.err);
    cluster.load_image(&archive);
}

fn script() -> Command {
    let mut command = Command::new(root().join("tests/cluster/cluster"));
    command.stdin(Stdio::null());
    command
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
