//! `siding plan`: of a tree, of a description on standard input, for people and as an environment.

use std::io::Write as _;
use std::process::{Command, Stdio};

use siding_fixtures::instances;
use siding_tests::{Said, scratch, siding};

fn plan(args: &[&str]) -> Said {
    Said::of(siding().arg("plan").args(args))
}

#[test]
fn a_tree_an_archive_and_standard_input_are_one_node() {
    let planted = instances::of("p5.48xlarge").unwrap().planted();
    let root = planted.path().to_str().unwrap();
    let scratch = scratch();
    let archive = scratch.path().join("node.tar");
    let archive = archive.to_str().unwrap();
    let printed = [
        "topology",
        "--root",
        root,
        "-o",
        "json",
        "--capture",
        archive,
    ];
    let node = Said::of(siding().args(printed)).out;
    let of_tree = plan(&["--root", root, "-o", "json"]).json();
    assert_eq!(of_tree["cap"], 23);
    assert_eq!(of_tree["ranks"][7]["nicCount"], 4);
    assert_eq!(plan(&["--root", archive, "-o", "json"]).json(), of_tree);

    let mut command = siding();
    command.args(["plan", "-o", "json", "--topology", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(node.as_bytes()).unwrap();
    drop(input);
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    let piped: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(piped, of_tree);
}

/// What one rank prints is what a shell then has, and nothing else.
#[test]
fn the_variables_of_a_rank_are_taken_literally() {
    let planted = instances::of("p5.48xlarge").unwrap().planted();
    let root = planted.path().to_str().unwrap();
    let scratch = scratch();
    let file = scratch.path().join("env");
    let said = plan(&["--root", root, "-o", "env", "--rank", "1"]);
    std::fs::write(&file, &said.out).unwrap();
    let script = "set -a; . \"$0\"; echo \"$MC_MAX_CONCURRENT_REG_MR $MC_TE_FILTERS\"";
    let shell = Said::of(Command::new("sh").args(["-c", script]).arg(&file));
    assert_eq!(
        shell.out, "23 rdmap96s0,rdmap97s0,rdmap98s0,rdmap99s0\n",
        "{}",
        said.out
    );
    let all = plan(&["--root", root, "-o", "env"]).out;
    assert!(all.contains("\n# MC_TE_FILTERS=rdmap96s0,"), "{all}");

    // A device that a hostile archive calls something else.
    let json = Said::of(siding().args(["topology", "--root", root, "-o", "json"])).out;
    let node = scratch.path().join("node.json");
    std::fs::write(
        &node,
        json.replace("\"rdmap96s0\"", "\"x; touch /tmp/y\\nA=1\""),
    )
    .unwrap();
    let said = plan(&["--topology", node.to_str().unwrap(), "-o", "env"]);
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""));
    let want = "siding: NIC \"x; touch /tmp/y\\nA=1\": such a name can't go into an environment";
    assert!(said.err.starts_with(want), "{}", said.err);
}

/// In every form, on standard output beside the plan.
#[test]
fn what_was_found_of_the_node_is_told() {
    let planted = instances::of("c5n.18xlarge").unwrap().planted();
    let root = planted.path().to_str().unwrap();
    for form in ["table", "yaml", "json", "env"] {
        let out = plan(&["--root", root, "-o", form]).out;
        let words = "are on no NUMA node that the kernel tells";
        assert!(out.contains(words), "{form}: {out}");
    }
    let crowded = plan(&["--cores", "2", "--ranks", "3"]).out;
    let words = "\nfinding: 3 ranks on 2 cores: no rank has a core of its own";
    assert!(crowded.contains(words), "{crowded}");
}

#[test]
fn counts_are_followed() {
    let counted = plan(&["--cores", "64", "--gpus", "4", "--nics", "8", "-o", "json"]).json();
    assert_eq!(counted["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(counted["ranks"][0]["nicCount"], 2);
    let fewer = [
        "--instance-type",
        "p5.48xlarge",
        "--nics",
        "16",
        "-o",
        "json",
    ];
    assert_eq!(plan(&fewer).json()["ranks"][0]["nicCount"], 2);
}

#[test]
fn what_can_not_be_is_refused_with_what_would_work() {
    let planted = instances::of("p5.48xlarge").unwrap().planted();
    let root = planted.path().to_str().unwrap();
    for (args, want) in [
        (
            vec!["--root", root, "--gpus-per-rank", "16"],
            "--gpus-per-rank: 16; write 1 to 8: the node has 8 GPUs",
        ),
        (
            vec!["--root", root, "--segment", "kv=1Gi,numa=9"],
            "segments[kv].numa: 9: the node has no such NUMA node; use one of: 0, 1, local",
        ),
        (
            vec!["--cores", "8", "--segment", "kv=1Gi", "--segment", "kv=2Gi"],
            "--segment: two are called kv; give each a name of its own, such as kv2=SIZE",
        ),
        (
            vec!["--root", root, "--rank", "1"],
            "--rank: only the environment is one rank's; write -o env too",
        ),
        (
            vec!["--root", root, "-o", "env", "--rank", "8"],
            "--rank: 8: the node is planned for 8 ranks; write 0 to 7",
        ),
        (
            vec!["--ranks", "x"],
            "invalid value 'x' for '--ranks <N>': write a whole number from 0 to 4096",
        ),
        (
            vec!["--cores", "-1"],
            "invalid value '-1' for '--cores <N>': write a whole number from 1 to 65535",
        ),
        (
            vec!["--root", "/nowhere"],
            "--root: /nowhere: does not exist",
        ),
    ] {
        plan(&args).assert_refused(2, want);
    }
}

/// Soft devices count where they are asked for; that none counts is told with every form of a plan.
#[test]
fn soft_devices_are_nics_where_they_are_allowed() {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/reference/guest-two-sockets.tar"
    );
    let env = plan(&["--root", root, "-o", "env", "--rank", "0"]).out;
    assert!(
        env.contains("\n# rank 0: no MC_TE_FILTERS: ") && env.contains("no usable NIC"),
        "{env}"
    );
    let json = plan(&["--root", root, "-o", "json"]).json();
    assert_eq!(json["ranks"][0]["nicCount"], 0);
    let allowed = plan(&["--root", root, "--allow-soft-rdma", "-o", "json"]).json();
    assert_ne!(allowed["ranks"][0]["nicCount"], 0, "{allowed}");
    let findings = allowed["findings"].as_array().unwrap();
    for finding in allowed["rails"]["findings"].as_array().unwrap() {
        let path = finding["path"].as_str().unwrap();
        let reason = finding["reason"].as_str().unwrap();
        assert!(findings.contains(&format!("{path}: {reason}").into()));
    }
}

/// Network cards that are no RDMA devices are not NICs to register on.
#[test]
fn a_type_without_rdma_has_no_nic() {
    let said = plan(&[
        "--instance-type",
        "a3-megagpu-8g",
        "--segment",
        "kv=64Gi,page=2Mi",
    ]);
    assert!(
        said.out.contains("\nGPUs: 8; usable NICs: 0\n"),
        "{}",
        said.out
    );
    assert!(said.out.contains("\nkv: 64Gi on 0 NICs: "), "{}", said.out);
}
