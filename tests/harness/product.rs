//! Siding as its users have it: the three images and the chart, on the tests' cluster.

use std::path::{Path, PathBuf};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::{Value, json};

use crate::cluster::{BUSYBOX, Cluster, Namespace, load_binary};
use crate::{binary, controller, eventually};

/// Where the operator and the agent run.
pub const NAMESPACE: &str = "siding-system";

/// What is put before the images' names.
const REGISTRY: &str = "siding.test";

/// Siding, installed by Helm once for all tests of a process.
pub struct Product {
    /// What it runs on.
    pub cluster: &'static Cluster,
    users: RwLock<()>,
}

impl Product {
    /// Installs it where no test of this process has done so.
    ///
    /// # Panics
    /// Where the images can't be made, or Helm says that it did not come up.
    #[must_use]
    pub fn installed() -> &'static Self {
        static PRODUCT: OnceLock<Product> = OnceLock::new();
        PRODUCT.get_or_init(|| {
            let cluster = Cluster::up();
            let binaries = [
                ("siding", binary()),
                ("siding-operator", controller("siding-operator")),
                ("siding-agent", controller("siding-agent")),
            ];
            for (package, binary) in binaries {
                let name = format!("{REGISTRY}/{package}:{}", env!("CARGO_PKG_VERSION"));
                load_binary(cluster, &name, &binary);
            }
            let product = Self {
                cluster,
                users: RwLock::default(),
            };
            product.install(&[]);
            product
        })
    }

    /// Uses it as it is, beside others, until what is given is dropped.
    pub fn shared(&self) -> RwLockReadGuard<'_, ()> {
        self.users.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses it alone, to take parts of it away for a while.
    pub fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.users.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// `helm upgrade --install` with more values.
    ///
    /// # Panics
    /// Where it does not come up within two minutes.
    pub fn install(&self, values: &[&str]) {
        let chart = chart();
        let chart = chart.to_str().unwrap();
        let registry = format!("images.registry={REGISTRY}");
        let mut arguments = vec!["upgrade", "--install", "siding", chart, "-n", NAMESPACE];
        arguments.extend(["--create-namespace", "--wait", "--timeout", "120s"]);
        arguments.extend(["--set", &registry]);
        for value in values {
            arguments.extend(["--set", value]);
        }
        let said = self.cluster.helm(&arguments);
        let pods = || {
            let say = |arguments: &[&str]| {
                let said = self
                    .cluster
                    .kubectl(&[&["-n", NAMESPACE], arguments].concat());
                said.out + &said.err
            };
            let logs = |of| say(&["logs", of, "--tail=20", "--prefix", "--all-pods"]);
            say(&["describe", "pods"]) + &logs("deploy/siding-operator") + &logs("ds/siding-agent")
        };
        assert_eq!(said.code, Some(0), "{}\n{}", said.err, pods());
    }

    /// A namespace that opted in.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Namespace {
        let namespace = self.cluster.namespace(name);
        let label = [
            "label",
            "namespace",
            namespace.name(),
            "siding.dev/inject=enabled",
        ];
        assert_eq!(self.cluster.kubectl(&label).code, Some(0));
        namespace
    }

    /// An object, once it is so.
    ///
    /// # Panics
    /// Where it does not become so within a minute, with what it is.
    pub fn until(&self, arguments: &[&str], is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(|| {
            let said = self
                .cluster
                .kubectl(&[&["get", "-o", "json"], arguments].concat());
            let found = serde_json::from_str(&said.out).unwrap_or(Value::Null);
            if is_so(&found) {
                return Ok(found);
            }
            Err(format!("{arguments:?}: {found:#}{}", said.err))
        })
    }
}

/// A pool that selects the pods of its name, with these fields in YAML's flow style.
#[must_use]
pub fn pool(namespace: &Namespace, name: &str, fields: &str) -> String {
    format!(
        "
apiVersion: siding.dev/v1alpha1
kind: StorePool
metadata: {{name: {name}, namespace: {}}}
spec: {{podSelector: {{matchLabels: {{app: {name}}}}}, {fields}}}
",
        namespace.name()
    )
}

/// A pod of an engine that the pool of this name selects.
#[must_use]
pub fn engine(namespace: &Namespace, name: &str, pool: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace.name(), "labels": {"app": pool}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [
            {"name": "engine", "image": BUSYBOX, "command": ["sh", "-c", "env; sleep 100000"]},
        ]},
    })
}

/// The chart's directory.
#[must_use]
pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/siding")
}

/// A condition of an object's status: status, reason and message.
#[must_use]
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<[&'a str; 3]> {
    let conditions = object["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|one| one["type"] == kind)?;
    let words = ["status", "reason", "message"].map(|key| condition[key].as_str());
    Some([words[0]?, words[1]?, words[2]?])
}
