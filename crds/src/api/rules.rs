//! CEL rules: what the API server refuses, and what it says would work.

use kube::core::{Message, Rule};

fn rule(rule: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule::new(rule).message(Message::Expression(message.into()))
}

/// `self` is a quantity at all.
pub(super) fn is_quantity() -> Rule {
    rule(
        "isQuantity(self)",
        "self + ' is not a quantity; write for example 2Gi or 512Mi'",
    )
}

/// `self`, if it is a quantity, is one of at least 1 whole byte. To the API server `1.5Gi` is no
/// integer, and nothing from `100Ti` on is.
pub(super) fn is_whole_bytes() -> Rule {
    rule(
        "!isQuantity(self) || quantity(self).isInteger() && quantity(self).isGreaterThan(quantity('0'))",
        "self + ' is not a whole number with a unit, from 1 byte to 99Ti; write for example 512Mi, or 1536Mi for 1.5Gi'",
    )
}

/// `self`, if it is a quantity, is positive.
pub(super) fn is_positive_cpu() -> Rule {
    rule(
        "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
        "self + ' is not a quantity of CPUs; write for example 100m or 2'",
    )
}

/// A segment's size is whole pages; the message has the nearest sizes that are.
pub(super) fn is_whole_pages() -> Rule {
    let size = "quantity(self.size)";
    let bytes = format!("{size}.asInteger()");
    let page = "(self.pageSize == 'Transparent' ? '4Ki' : self.pageSize)";
    let page_bytes = format!("quantity{page}.asInteger()");
    let kibibytes =
        |pages: &str| format!("({bytes} / {page_bytes} + {pages}) * ({page_bytes} / 1024)");
    // By format(): the API server takes each string(int) for one of megabytes.
    let words = "'segment %s: size %s is not a whole number of %s pages; ";
    let (above, below) = (kibibytes("1"), kibibytes("0"));
    rule(
        format!("!isQuantity(self.size) || !{size}.isInteger() || {bytes} % {page_bytes} == 0"),
        format!(
            "{bytes} < {page_bytes} ? {words}%dKi is'.format([self.name, self.size, {page}, {above}]) \
             : {words}%dKi or %dKi is'.format([self.name, self.size, {page}, {below}, {above}])"
        ),
    )
}
