//! Keys of the HTTP metadata server, and what lies under them.

use serde::{Deserialize, Serialize};

/// The key of a segment's descriptor: `mooncake/[<cluster>/]ram/<segment>`.
#[must_use]
pub fn descriptor_key(cluster: Option<&str>, segment: &str) -> String {
    key(cluster, "ram", segment)
}

/// The key of a segment's handshake address: `mooncake/[<cluster>/]rpc_meta/<segment>`.
#[must_use]
pub fn rpc_meta_key(cluster: Option<&str>, segment: &str) -> String {
    key(cluster, "rpc_meta", segment)
}

fn key(cluster: Option<&str>, kind: &str, segment: &str) -> String {
    match cluster.filter(|cluster| !cluster.is_empty()) {
        Some(cluster) => format!("mooncake/{cluster}/{kind}/{segment}"),
        None => format!("mooncake/{kind}/{segment}"),
    }
}

/// Escapes a key for the query of a URL: everything but letters, digits and `-._~` (RFC 3986).
#[must_use]
pub fn escaped(key: &str) -> String {
    let mut out = String::with_capacity(key.len() + 16);
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

/// Where a segment's handshake endpoint is. Clients keep it for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcMeta {
    /// Host name or address, without brackets.
    pub ip_or_host_name: String,
    /// Its port.
    pub rpc_port: u16,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_that_clients_ask_for() {
        assert_eq!(descriptor_key(None, "kv"), "mooncake/ram/kv");
        assert_eq!(descriptor_key(Some(""), "kv"), "mooncake/ram/kv");
        assert_eq!(
            rpc_meta_key(Some("blue"), "10.0.0.1:1234"),
            "mooncake/blue/rpc_meta/10.0.0.1:1234"
        );
    }

    #[test]
    fn whatever_a_name_holds_stays_one_query_value() {
        assert_eq!(
            escaped("mooncake/ram/[::1]:80"),
            "mooncake%2Fram%2F%5B%3A%3A1%5D%3A80"
        );
        assert_eq!(escaped("a&key=b c%é~_-."), "a%26key%3Db%20c%25%C3%A9~_-.");
    }

    #[test]
    fn an_address_is_read_with_keys_that_are_not_known() {
        let meta = RpcMeta {
            ip_or_host_name: "10.0.0.1".to_owned(),
            rpc_port: 1234,
        };
        let text = r#"{"ip_or_host_name":"10.0.0.1","rpc_port":1234,"later":{}}"#;
        assert_eq!(serde_json::from_str::<RpcMeta>(text).unwrap(), meta);
        assert!(
            serde_json::from_str::<RpcMeta>(r#"{"ip_or_host_name":"a","rpc_port":65536}"#).is_err()
        );
    }
}
