//! What Siding may do is what it does: roles against the API server's audit log.

use std::collections::BTreeSet;

use serde_json::Value;
use siding_tests::product::{NAMESPACE, Product};

/// What is granted and used, as `group/resource/subresource verb`.
type Uses = BTreeSet<String>;

/// Rights that are for what hardly ever happens, and why they are there.
const SELDOM: [(&str, &str); 4] = [
    ("siding-operator", "siding.dev/storemounts delete"), // where the garbage collector is slower than the operator
    // Server-side apply of what is not there yet needs it, and is logged as a patch.
    ("siding-operator", "siding.dev/storemounts create"),
    ("siding-agent", "siding.dev/nodetopologies create"),
    ("siding-operator", "/secrets update"), // a certificate is renewed after weeks
];

fn strings(value: &Value) -> Vec<String> {
    let all = value.as_array().into_iter().flatten();
    all.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn granted(rules: &Value) -> Uses {
    let mut all = Uses::new();
    for rule in rules.as_array().into_iter().flatten() {
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                for verb in strings(&rule["verbs"]) {
                    assert!(
                        ![&group, &resource, &verb]
                            .iter()
                            .any(|word| word.contains('*'))
                    );
                    all.insert(format!("{group}/{resource} {verb}"));
                }
            }
        }
    }
    all
}

/// Waits for all other tests, so that what they made Siding do is in the log: its name puts it last, and it is alone.
#[test]
fn what_is_granted_is_used_and_nothing_was_refused() {
    let product = Product::installed();
    let _alone = product.alone();
    let cluster = product.cluster;
    let audit = cluster.audit();
    for account in ["siding-operator", "siding-agent"] {
        let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
        let requests: Vec<&Value> = audit
            .iter()
            .filter(|event| event["user"]["username"] == user.as_str())
            .collect();
        let refused: Vec<&&Value> = requests
            .iter()
            .filter(|event| event["responseStatus"]["code"] == 403)
            // In a namespace that is being deleted nothing can be made.
            .filter(|event| event["annotations"]["authorization.k8s.io/decision"] == "forbid")
            .collect();
        assert!(refused.is_empty(), "{account}: {:#}", refused[0]);
        let used: Uses = requests
            .iter()
            .filter(|event| event["objectRef"].is_object())
            .map(|event| {
                let of = &event["objectRef"];
                let word = |key: &str| of[key].as_str().unwrap_or_default();
                let sub = of["subresource"].as_str().map(|sub| format!("/{sub}"));
                let verb = event["verb"].as_str().unwrap();
                format!(
                    "{}/{}{} {verb}",
                    word("apiGroup"),
                    word("resource"),
                    sub.unwrap_or_default()
                )
            })
            .collect();

        let role = cluster.get(&["clusterrole", account]);
        let mut all = granted(&role["rules"]);
        if account == "siding-operator" {
            let role = cluster.get(&["-n", NAMESPACE, "role", account]);
            all.extend(granted(&role["rules"]));
        }
        for (_, seldom) in SELDOM.iter().filter(|(of, _)| *of == account) {
            assert!(all.remove(*seldom), "{seldom} is not granted");
        }
        let unused: Vec<&String> = all.difference(&used).collect();
        assert!(unused.is_empty(), "{account} never used {unused:?}");
        // Without rules for it, what anybody may ask.
        let more: Vec<&String> = used.difference(&all).collect();
        assert!(
            more.iter().all(|one| SELDOM
                .iter()
                .any(|(of, seldom)| *of == account && one == seldom)),
            "{account} used {more:?}, which its roles do not grant"
        );
    }
}

#[test]
fn an_agent_writes_of_its_own_node_only() {
    let product = Product::installed();
    let _shared = product.shared();
    // As the agent, by impersonation: its image has no shell to take its token from.
    let topology = |name: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "{{apiVersion: siding.dev/v1alpha1, kind: NodeTopology, metadata: {{name: {name}}}, spec: {{}}}}"
        );
        std::fs::write(file.path(), text).unwrap();
        let user = format!("--as=system:serviceaccount:{NAMESPACE}:siding-agent");
        let extra = "--as-user-extra=authentication.kubernetes.io/node-name=node-1";
        let path = file.path().to_str().unwrap();
        product
            .cluster
            .kubectl(&["create", "--dry-run=server", "-f", path, &user, extra])
    };
    let said = topology("node-2");
    assert_eq!(said.code, Some(1));
    assert!(
        said.err
            .contains("the agent of node node-1 may not write what is of node node-2"),
        "{}",
        said.err
    );
    let said = topology("node-1");
    assert!(
        said.code == Some(0) || said.err.contains("already exists"),
        "{}",
        said.err
    );
}
