//! The schema as a TOML file: `[[columns]]` with `name`, `type`, `nullable` and `role`.

use std::path::Path;

use gristmill_shard::{
    Error, Result, nearest_name,
    schema::{Column, DatasetSchema, Role},
};

use crate::sources::io_error;

const KEYS: [&str; 4] = ["name", "type", "nullable", "role"];
const ROLES: [(&str, Role); 5] = [
    ("label", Role::Label),
    ("feature", Role::Feature),
    ("weight", Role::Weight),
    ("group", Role::Group),
    ("id", Role::Id),
];

/// The role called `name`.
///
/// # Errors
/// [`Error::Usage`] with the nearest name.
pub fn parse_role(name: &str) -> Result<Role> {
    ROLES.iter().find(|(n, _)| *n == name).map(|(_, role)| *role).ok_or_else(|| {
        Error::usage(format!("unknown role \"{name}\""), nearest_name(name, ROLES.iter().map(|(n, _)| *n)))
    })
}

/// Reads a schema file.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Permission`], and those of [`schema_from_toml`].
pub fn read_schema_file(path: &Path) -> Result<DatasetSchema> {
    let name = path.display().to_string();
    let text = fs_err::read_to_string(path).map_err(|e| io_error(&name, e))?;
    schema_from_toml(&text, &name)
}

/// Reads a schema from the text of `file`.
///
/// # Errors
/// [`Error::Usage`], naming the column and, for unknown keys, types and roles, the nearest valid one.
pub fn schema_from_toml(text: &str, file: &str) -> Result<DatasetSchema> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        Error::usage(
            format!("{file} is not TOML: {}", e.to_string().trim_end()),
            "write [[columns]] with name and type",
        )
    })?;
    let unknown = |key: &str, place: &str, valid: &[&str]| {
        Error::usage(format!("{file}: unknown key \"{key}\"{place}"), nearest_name(key, valid.iter().copied()))
    };
    if let Some(key) = table.keys().find(|k| *k != "columns") {
        return Err(unknown(key, "", &["columns"]));
    }
    let Some(toml::Value::Array(entries)) = table.get("columns") else {
        return Err(Error::usage(
            format!("{file} has no [[columns]]"),
            "write [[columns]] with name and type for each column",
        ));
    };
    let mut columns = Vec::with_capacity(entries.len());
    for (i, entry) in entries.iter().enumerate() {
        let place = format!(" in column {} of the file", i + 1);
        let wrong = |key: &str, want: &str| {
            Error::usage(format!("{file}: \"{key}\"{place} is not {want}"), format!("write {key} = {want}"))
        };
        let toml::Value::Table(entry) = entry else { return Err(wrong("columns", "a table")) };
        if let Some(key) = entry.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(unknown(key, &place, &KEYS));
        }
        let text = |key: &str| match entry.get(key) {
            Some(toml::Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(wrong(key, "a text in quotes")),
            None => Ok(None),
        };
        let missing =
            |key: &str| Error::usage(format!("{file}: \"{key}\"{place} is missing"), "each column needs name and type");
        let in_file = |e: Error| match e {
            Error::Usage { what, help } => Error::usage(format!("{file}: {what}{place}"), help),
            other => other,
        };
        let nullable = match entry.get("nullable") {
            Some(toml::Value::Boolean(nullable)) => *nullable,
            Some(_) => return Err(wrong("nullable", "true or false")),
            None => true,
        };
        columns.push(Column {
            name: text("name")?.ok_or_else(|| missing("name"))?.to_owned(),
            column_type: text("type")?.ok_or_else(|| missing("type"))?.parse().map_err(in_file)?,
            nullable,
            role: text("role")?.map(parse_role).transpose().map_err(in_file)?,
        });
    }
    let schema = DatasetSchema { columns };
    schema.check_names(file)?;
    Ok(schema)
}

/// The text of a schema file: what [`schema_from_toml`] reads.
///
/// # Errors
/// [`Error::Internal`] when it can't be written.
pub fn schema_to_toml(schema: &DatasetSchema) -> Result<String> {
    toml::to_string(schema).map_err(|e| Error::internal(format!("a schema does not go into TOML: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_read_back_as_they_are_written() {
        let text = "[[columns]]\nname = \"id\"\ntype = \"int64\"\nnullable = false\nrole = \"id\"\n\n[[columns]]\nname = \"at\"\ntype = \"timestamp[us, UTC]\"\n";
        let schema = schema_from_toml(text, "s.toml").unwrap();
        assert_eq!(schema.columns[0].role, Some(Role::Id));
        assert!(schema.columns[1].nullable && !schema.columns[0].nullable);
        assert_eq!(schema_from_toml(&schema_to_toml(&schema).unwrap(), "again").unwrap(), schema);
        for (name, role) in ROLES {
            assert_eq!(parse_role(name).unwrap(), role);
        }
    }

    #[test]
    fn mistakes_are_told_with_the_nearest_name() {
        for (text, want) in [
            ("[[column]]\nname='a'", "did you mean \"columns\""),
            ("columns = 3", "no [[columns]]"),
            ("[[columns]]\nname='a'\ntyp='int64'", "did you mean \"type\""),
            ("[[columns]]\nname='a'\ntype='itn64'", "did you mean \"int64\""),
            ("[[columns]]\nname='a'\ntype='int64'\nrole='lable'", "did you mean \"label\""),
            ("[[columns]]\nname='a'", "\"type\" in column 1"),
            ("[[columns]]\nname='a'\ntype='int64'\nnullable='no'", "true or false"),
            ("[[columns]]\nname='a'\ntype='int64'\n[[columns]]\nname='a'\ntype='int64'", "two columns"),
            ("[[columns]]\nname='_a'\ntype='int64'", "reserved"),
            ("not toml", "not TOML"),
        ] {
            let error = schema_from_toml(text, "s.toml").unwrap_err();
            assert_eq!(error.kind(), gristmill_shard::ErrorKind::Usage);
            assert!(error.to_string().contains(want), "{text}: {error}");
        }
    }
}
