//! CEL rules: what the API server refuses, and what it says would work.

use kube::core::{Message, Rule};

fn rule(rule: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule::new(rule).message(Message::Expression(message.into()))
}

/// `self` is a quantity at all.
pub(super) fn is_quantity() -> Rule {
    rule(
        "isQuantity(string(self))",
        "string(self) + ' is not a quantity; write for example 2Gi or 512Mi'",
    )
}

/// `self`, if it is a quantity, is one of at least 1 whole byte that fits 63 bits.
pub(super) fn is_whole_bytes() -> Rule {
    rule(
        "!isQuantity(string(self)) || quantity(string(self)).isInteger() && quantity(string(self)).sign() > 0",
        "string(self) + ' is not a whole number of bytes from 1 to 2^63-1; write for example 2Gi or 512Mi'",
    )
}

/// `self`, if it is a quantity, is positive.
pub(super) fn is_positive_cpu() -> Rule {
    rule(
        "isQuantity(self) && quantity(self).sign() > 0",
        "self + ' is not a quantity of CPUs; write for example 100m or 2'",
    )
}

/// A segment's size is whole pages; the message has the nearest sizes that are.
pub(super) fn is_whole_pages() -> Rule {
    let size = "quantity(string(self.size))";
    let bytes = format!("{size}.asInteger()");
    let page = "(self.pageSize == 'Transparent' ? '4Ki' : self.pageSize)";
    let page_bytes = format!("quantity{page}.asInteger()");
    let kibibytes =
        |pages: &str| format!("string(({bytes} / {page_bytes} + {pages}) * ({page_bytes} / 1024))");
    rule(
        format!(
            "!isQuantity(string(self.size)) || !{size}.isInteger() || {bytes} % {page_bytes} == 0"
        ),
        format!(
            "'segment ' + self.name + ': size ' + string(self.size) + ' is not a whole number of ' \
             + {page} + ' pages; ' + ({bytes} < {page_bytes} ? '' : {} + 'Ki or ') + {} + 'Ki is'",
            kibibytes("0"),
            kibibytes("1"),
        ),
    )
}
