//! S3 credentials that lie where object_store does not look.
//!
//! It reads options and `AWS_*` variables (keys, a web identity, a container's role) and else asks the machine's metadata
//! service. Profiles, `~/.aws` and single sign-on are the AWS tools' own. Where only those are there, asking the metadata
//! service would take long and fail, or sign with a role that nobody meant.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use crate::error::{Error, Result};

/// How credentials that the AWS tools know become such as are read here.
pub(crate) const EXPORT_HELP: &str = "run `eval \"$(aws configure export-credentials --format env)\"` (with `--profile NAME` for another), or set \
     AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN)";

/// Keys of which each says that a profile has credentials.
const SIGNS: [&str; 7] = [
    "aws_access_key_id",
    "credential_process",
    "credential_source",
    "login_session",
    "role_arn",
    "sso_session",
    "sso_start_url",
];

/// What the AWS tools would take credentials from.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    /// `AWS_PROFILE`, or its older name.
    name: Option<OsString>,
    /// The two files of `~/.aws`.
    files: Vec<PathBuf>,
}

impl Profiles {
    /// By this process's environment.
    pub(super) fn of_this_process() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = set("HOME").map(|home| Path::new(&home).join(".aws"));
        let file = |variable: &str, name: &str| {
            set(variable).map(PathBuf::from).or_else(|| folder.as_ref().map(|folder| folder.join(name)))
        };
        let files = [file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), file("AWS_CONFIG_FILE", "config")];
        Self {
            name: set("AWS_PROFILE").or_else(|| set("AWS_DEFAULT_PROFILE")),
            files: files.into_iter().flatten().collect(),
        }
    }

    /// Where there are credentials, in words.
    fn found(&self) -> Option<String> {
        if let Some(name) = &self.name {
            return Some(format!("the profile \"{}\" (AWS_PROFILE)", name.to_string_lossy()));
        }
        let has = |file: &&PathBuf| {
            std::fs::read_to_string(file)
                .is_ok_and(|text| text.lines().any(|line| SIGNS.iter().any(|sign| line.trim_start().starts_with(sign))))
        };
        self.files.iter().find(has).map(|file| file.display().to_string())
    }
}

/// Whether options or variables say how requests are signed.
pub(super) fn are_given(builder: &AmazonS3Builder) -> bool {
    let keys = [
        AmazonS3ConfigKey::AccessKeyId,
        AmazonS3ConfigKey::SecretAccessKey,
        AmazonS3ConfigKey::WebIdentityTokenFile,
        AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
        AmazonS3ConfigKey::ContainerCredentialsFullUri,
        // Who names the metadata service means it.
        AmazonS3ConfigKey::MetadataEndpoint,
    ];
    let unsigned = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature).as_deref() == Some("true");
    unsigned || keys.iter().any(|key| builder.get_config_value(key).is_some())
}

/// Refuses to open `url`, for which no credentials are given, when there are some that are not read.
///
/// # Errors
/// [`Error::Usage`] with how to export them.
pub(super) fn check(url: &str, profiles: &Profiles) -> Result<()> {
    match profiles.found() {
        None => Ok(()),
        Some(place) => Err(Error::usage(
            format!(
                "{url}: the only credentials here are those of {place}, and profiles, ~/.aws and single sign-on are not read"
            ),
            format!("{EXPORT_HELP}; for the role of an EC2 machine, add aws_metadata_endpoint=http://169.254.169.254"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_alone_are_refused_with_how_to_export_them() {
        let dir = tempfile::tempdir().unwrap();
        let profiles = |name: Option<&str>, config: &str| {
            let file = dir.path().join("config");
            std::fs::write(&file, config).unwrap();
            Profiles { name: name.map(OsString::from), files: vec![dir.path().join("credentials"), file] }
        };
        let texts = ["[default]\nregion = eu-west-1\nsso_session = x\n", "[default]\n  aws_access_key_id=AK\n"];
        let cases = [(Some("work"), ""), (None, texts[0]), (None, texts[1])];
        for (name, config) in cases {
            let text = check("s3://b", &profiles(name, config)).unwrap_err().to_string();
            assert!(text.contains("aws configure export-credentials --format env"), "{text}");
        }
        let region_only = profiles(None, "[default]\nregion = eu-west-1\n# aws_access_key_id = commented out\n");
        assert!(check("s3://b", &region_only).is_ok());
        assert!(check("s3://b", &Profiles::default()).is_ok());
    }

    #[test]
    fn credentials_that_are_read_are_known() {
        let with = |key, value: &str| AmazonS3Builder::new().with_config(key, value);
        for builder in [
            with(AmazonS3ConfigKey::AccessKeyId, "k"),
            with(AmazonS3ConfigKey::WebIdentityTokenFile, "/token"),
            with(AmazonS3ConfigKey::ContainerCredentialsRelativeUri, "/x"),
            with(AmazonS3ConfigKey::MetadataEndpoint, "http://169.254.169.254"),
            with(AmazonS3ConfigKey::SkipSignature, "true"),
        ] {
            assert!(are_given(&builder));
        }
        assert!(!are_given(&with(AmazonS3ConfigKey::SkipSignature, "false")));
        assert!(!are_given(&with(AmazonS3ConfigKey::Region, "eu-west-1")));
    }
}
