//! Who may call what: the one table. What is not in it is denied.

use Role::{Client, Operator, Worker};
use feedline_wire::token::Role;

/// Who may call something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody, also without a token.
    Open,
    /// Those who bear a token of one of these roles; nobody if there are none.
    Roles(&'static [Role]),
}

impl Access {
    /// Whether not even a token is needed.
    #[must_use]
    pub fn allows_everybody(self) -> bool {
        self == Self::Open
    }

    /// Whether a role is among those that may.
    #[must_use]
    pub fn allows(self, role: Role) -> bool {
        match self {
            Self::Open => true,
            Self::Roles(roles) => roles.contains(&role),
        }
    }
}

/// The service that the table is about.
const DISPATCHER: &str = "/feedline.v1.Dispatcher/";

const TABLE: &[(&str, &[Role])] = &[
    ("OpenJob", &[Client]),
    ("Restore", &[Client]),
    ("Attach", &[Client]),
    ("Get", &[Client]),
    ("Commit", &[Client]),
    ("Release", &[Operator]),
    ("CloseJob", &[Client, Operator]),
    ("RegisterDataset", &[Client]),
    ("PutBlob", &[Client]),
    ("GetDataset", &[Worker, Operator]),
    ("GetBlob", &[Worker, Operator]),
    ("RemoveDataset", &[Operator]),
    ("Beat", &[Worker]),
    ("Workers", &[Client, Worker, Operator]),
    ("DrainWorker", &[Operator]),
    ("Report", &[Client]),
    ("Status", &[Operator]),
];

/// Who may call the method at a path such as `/feedline.v1.Dispatcher/Get`.
#[must_use]
pub fn access(path: &str) -> Access {
    if let Some(method) = path.strip_prefix(DISPATCHER) {
        let row = TABLE.iter().find(|(known, _)| *known == method);
        return Access::Roles(row.map_or(&[], |(_, roles)| roles));
    }
    match path {
        // Those who look whether it is alive have no tokens.
        "/grpc.health.v1.Health/Check" | "/grpc.health.v1.Health/Watch" => Access::Open,
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" => Access::Roles(&[Operator]),
        _ => Access::Roles(&[]),
    }
}

/// The methods of the dispatcher, in the order of the table.
pub fn methods() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(method, _)| *method)
}

/// The name of a dispatcher's method, if a path is one's.
#[must_use]
pub fn method(path: &str) -> Option<&'static str> {
    let method = path.strip_prefix(DISPATCHER)?;
    methods().find(|known| *known == method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_the_table_is_denied() {
        for path in ["", "/", "/feedline.v1.Dispatcher/", "/feedline.v1.Dispatcher/Other", "/x/Get"]
        {
            assert!(Role::ALL.iter().all(|role| !access(path).allows(*role)), "{path}");
        }
        assert!(access("/feedline.v1.Dispatcher/Get").allows(Client));
        assert!(!access("/feedline.v1.Dispatcher/Get").allows(Worker));
    }
}
