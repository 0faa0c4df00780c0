//! Object stores over HTTP: which URL opens which store, with which options, and how long a request is tried.

use std::{str::FromStr as _, sync::Arc, time::Duration};

use object_store::{
    BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    limit::LimitStore,
    path::Path as ObjectPath,
};

use super::{StorageOptions, credentials, parse};
use crate::error::{Error, Result, nearest_name};

/// A store that was opened, and where in it the URL points.
pub(super) struct Opened {
    pub store: Arc<dyn ObjectStore>,
    pub root: ObjectPath,
    /// How long a request may be tried again after it was first sent.
    pub retry: Duration,
}

/// `retry_seconds`: for how long a request that failed for reasons of the store or the network is tried again.
const RETRY_SECONDS: &str = "retry_seconds";
/// `max_requests`: how many requests may be under way at once, for one opened URL.
const MAX_REQUESTS: &str = "max_requests";
/// Throttling and the restart of a gateway are over within this; a mistyped endpoint should not be waited for longer.
const DEFAULT_RETRY: Duration = Duration::from_secs(60);
/// A request is signed once: tried for longer than about five minutes, its signature or token would be refused.
const MOST_RETRY_SECONDS: u64 = 290;
/// For how long the metadata service of a machine is asked for credentials.
const METADATA_RETRY: Duration = Duration::from_secs(10);
const DEFAULT_REQUESTS: usize = 64;
const MOST_REQUESTS: usize = 4096;

/// Our own options, which every remote store takes beside those of its scheme.
#[derive(Debug, Clone, Copy)]
struct Limits {
    retry: Duration,
    requests: usize,
}

impl Limits {
    /// Splits `options` into ours and the store's.
    fn take(url: &str, options: &StorageOptions) -> Result<(Self, StorageOptions)> {
        let mut limits = Self { retry: DEFAULT_RETRY, requests: DEFAULT_REQUESTS };
        let mut rest = options.clone();
        if let Some(value) = rest.remove(RETRY_SECONDS) {
            let seconds = value.trim().parse().ok().filter(|s| (0..=MOST_RETRY_SECONDS).contains(s));
            limits.retry = Duration::from_secs(seconds.ok_or_else(|| {
                let range = format!("give whole seconds from 0 (never try again) to {MOST_RETRY_SECONDS}");
                Error::usage(format!("storage option {RETRY_SECONDS}=\"{value}\" of {url} can't be used"), range)
            })?);
        }
        if let Some(value) = rest.remove(MAX_REQUESTS) {
            let requests = value.trim().parse().ok().filter(|n| (1..=MOST_REQUESTS).contains(n));
            limits.requests = requests.ok_or_else(|| {
                let range = format!("give a number from 1 to {MOST_REQUESTS}");
                Error::usage(format!("storage option {MAX_REQUESTS}=\"{value}\" of {url} can't be used"), range)
            })?;
        }
        Ok((limits, rest))
    }

    fn retry_config(self) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(5),
                base: 2.0,
            },
            // Time is the bound: with waits of a tenth of a second at least, it is reached long before this count.
            max_retries: if self.retry.is_zero() { 0 } else { 10_000 },
            retry_timeout: self.retry,
        }
    }

    fn opened(self, store: impl ObjectStore, root: ObjectPath) -> Opened {
        Opened { store: Arc::new(LimitStore::new(store, self.requests)), root, retry: self.retry }
    }
}

/// Opens `url` of `scheme`; nothing is sent yet.
pub(super) fn open(scheme: &str, url: &str, options: &StorageOptions) -> Result<Opened> {
    match scheme {
        "s3" => s3(url, options),
        #[cfg(feature = "gcs")]
        "gs" => gcs(url, options),
        #[cfg(not(feature = "gcs"))]
        "gs" => Err(not_built(url, "Google Cloud Storage", "gcs")),
        #[cfg(feature = "azure")]
        "az" => azure(url, options),
        #[cfg(not(feature = "azure"))]
        "az" => Err(not_built(url, "Azure Blob Storage", "azure")),
        other => Err(Error::usage(
            format!("{url}: storage \"{other}://\" is not built in"),
            "use a local path, file://, s3://, gs:// or az://",
        )),
    }
}

#[cfg(not(all(feature = "gcs", feature = "azure")))]
fn not_built(url: &str, what: &str, feature: &str) -> Error {
    Error::usage(
        format!("{url}: {what} is not built into this gristmill"),
        format!("build it with `cargo build --release --workspace --features gristmill/{feature}`"),
    )
}

/// The path of a URL `scheme://bucket/path`, which has no other parts.
fn root(url: &str, form: &str) -> Result<ObjectPath> {
    let parsed = parse(url)?;
    let odd = [
        (parsed.query().is_some(), "a `?`"),
        (parsed.fragment().is_some(), "a `#`"),
        (!parsed.username().is_empty() || parsed.password().is_some(), "a user or password"),
    ];
    if let Some((_, what)) = odd.iter().find(|(there, _)| *there) {
        return Err(Error::usage(
            format!("{} has {what}, which means nothing there", without_secrets(&parsed)),
            format!("write {form}, with %3F for ? and %23 for #; credentials are storage options"),
        ));
    }
    ObjectPath::from_url_path(parsed.path())
        .map_err(|e| Error::usage(format!("{url} is not a usable URL: {e}"), format!("write {form}")))
}

/// A URL for messages.
fn without_secrets(url: &url::Url) -> String {
    format!("{}://{}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

fn unknown_option(name: &str, url: &str, names: &[&str]) -> Error {
    let ours = [RETRY_SECONDS, MAX_REQUESTS];
    Error::usage(
        format!("unknown storage option \"{name}\" for {url}"),
        nearest_name(name, names.iter().copied().chain(ours)),
    )
}

fn bad_options(url: &str, e: &object_store::Error) -> Error {
    Error::usage(format!("{url}: {e}"), "check the storage options")
}

/// The options named in help; object_store accepts more aliases of the same.
const S3_OPTIONS: [&str; 20] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region",
    "aws_endpoint",
    "aws_allow_http",
    "aws_virtual_hosted_style_request",
    "aws_skip_signature",
    "aws_unsigned_payload",
    "aws_checksum_algorithm",
    "aws_metadata_endpoint",
    "aws_request_payer",
    "aws_server_side_encryption",
    "aws_sse_kms_key_id",
    "aws_disable_bulk_delete",
    "aws_conditional_put",
    "timeout",
    "connect_timeout",
    "proxy_url",
    "allow_invalid_certificates",
];

fn s3(url: &str, options: &StorageOptions) -> Result<Opened> {
    let root = root(url, "s3://bucket/prefix")?;
    let (limits, options) = Limits::take(url, options)?;
    let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(limits.retry_config());
    for (name, value) in options {
        let key = AmazonS3ConfigKey::from_str(&name).map_err(|_| unknown_option(&name, url, &S3_OPTIONS))?;
        builder = builder.with_config(key, value);
    }
    check_endpoint(url, &builder)?;
    if !credentials::are_given(&builder) {
        credentials::check(url, &credentials::Profiles::of_this_process())?;
        // What is left is the machine's metadata service. Where there is none, that should be found out soon.
        let config = Limits { retry: limits.retry.min(METADATA_RETRY), ..limits }.retry_config();
        let asking = builder.clone().with_retry(config).build().map_err(|e| bad_options(url, &e))?;
        builder = builder.with_credentials(Arc::clone(asking.credentials()));
    }
    let store = builder.build().map_err(|e| bad_options(url, &e))?;
    Ok(limits.opened(store, root))
}

/// What would else be found out by the first request, in words of an HTTP client.
fn check_endpoint(url: &str, builder: &AmazonS3Builder) -> Result<()> {
    let value = |key: AmazonS3ConfigKey| builder.get_config_value(&key);
    let Some(endpoint) = value(AmazonS3ConfigKey::S3Endpoint).or_else(|| value(AmazonS3ConfigKey::Endpoint)) else {
        return Ok(());
    };
    let parsed = url::Url::parse(&endpoint).ok().filter(|u| u.has_host());
    match parsed.as_ref().map(url::Url::scheme) {
        Some("https") => Ok(()),
        Some("http") => {
            if value(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp)).as_deref() == Some("true") {
                return Ok(());
            }
            Err(Error::usage(
                format!("{url}: the endpoint {endpoint} is plain HTTP, over which nothing is sent unless asked for"),
                "add aws_allow_http=true (or AWS_ALLOW_HTTP=true), or give an https:// endpoint",
            ))
        }
        _ => Err(Error::usage(
            format!("{url}: the endpoint \"{endpoint}\" is not a URL of a server"),
            "write aws_endpoint=https://host:port, without the bucket",
        )),
    }
}

#[cfg(feature = "gcs")]
const GCS_OPTIONS: [&str; 9] = [
    "google_service_account",
    "google_service_account_key",
    "google_application_credentials",
    "google_bearer_token",
    "google_base_url",
    "google_skip_signature",
    "timeout",
    "connect_timeout",
    "proxy_url",
];

#[cfg(feature = "gcs")]
fn gcs(url: &str, options: &StorageOptions) -> Result<Opened> {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
    let root = root(url, "gs://bucket/prefix")?;
    let (limits, options) = Limits::take(url, options)?;
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(limits.retry_config());
    for (name, value) in options {
        let key = GoogleConfigKey::from_str(&name).map_err(|_| unknown_option(&name, url, &GCS_OPTIONS))?;
        builder = builder.with_config(key, value);
    }
    let store = builder.build().map_err(|e| bad_options(url, &e))?;
    Ok(limits.opened(store, root))
}

#[cfg(feature = "azure")]
const AZURE_OPTIONS: [&str; 14] = [
    "azure_storage_account_name",
    "azure_storage_account_key",
    "azure_storage_sas_key",
    "azure_storage_token",
    "azure_storage_client_id",
    "azure_storage_client_secret",
    "azure_storage_tenant_id",
    "azure_storage_endpoint",
    "azure_storage_use_emulator",
    "azure_use_azure_cli",
    "azure_skip_signature",
    "allow_http",
    "timeout",
    "connect_timeout",
];

#[cfg(feature = "azure")]
fn azure(url: &str, options: &StorageOptions) -> Result<Opened> {
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    let root = root(url, "az://container/prefix")?;
    let (limits, options) = Limits::take(url, options)?;
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(url).with_retry(limits.retry_config());
    for (name, value) in options {
        let key = AzureConfigKey::from_str(&name).map_err(|_| unknown_option(&name, url, &AZURE_OPTIONS))?;
        builder = builder.with_config(key, value);
    }
    let store = builder.build().map_err(|e| bad_options(url, &e))?;
    Ok(limits.opened(store, root))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> StorageOptions {
        let keys = [("aws_access_key_id", "k"), ("aws_secret_access_key", "s")];
        keys.iter().chain(pairs).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn refusal(url: &str, pairs: &[(&str, &str)]) -> String {
        let Err(error) = open(url.split_once("://").unwrap().0, url, &options(pairs)) else {
            panic!("{url} with {pairs:?} opens");
        };
        assert_eq!(error.kind(), crate::ErrorKind::Usage);
        error.to_string()
    }

    #[test]
    fn limits_are_read_and_odd_ones_refused() {
        let (limits, rest) =
            Limits::take("s3://b", &options(&[("retry_seconds", "7"), ("max_requests", "3")])).unwrap();
        assert_eq!((limits.retry, limits.requests), (Duration::from_secs(7), 3));
        assert_eq!(rest, options(&[]));
        let (limits, _) = Limits::take("s3://b", &options(&[("retry_seconds", "0")])).unwrap();
        assert_eq!(limits.retry_config().max_retries, 0);
        for odd in ["-1", "1.5", "", "291", "9999999999999999999999"] {
            assert!(refusal("s3://b", &[("retry_seconds", odd)]).contains("from 0"), "{odd}");
        }
        for odd in ["0", "4097", "many"] {
            assert!(refusal("s3://b", &[("max_requests", odd)]).contains("from 1"), "{odd}");
        }
    }

    #[test]
    fn urls_say_bucket_and_path_and_nothing_else() {
        let opened = s3("s3://bucket/a%20b/c/", &options(&[])).unwrap();
        assert_eq!(opened.root.as_ref(), "a b/c");
        for odd in ["s3://bucket/a?b", "s3://bucket/a#b", "s3://name:secret@bucket/a"] {
            let text = refusal(odd, &[]);
            assert!(text.contains("means nothing there") && !text.contains("secret@"), "{text}");
        }
        let _ = refusal("s3://bucket/a//b", &[]);
        let _ = refusal("s3:///a", &[]);
    }

    #[test]
    fn endpoints_are_checked_before_anything_is_sent() {
        assert!(refusal("s3://b", &[("aws_endpoint", "http://h:1")]).contains("aws_allow_http=true"));
        assert!(refusal("s3://b", &[("aws_endpoint", "h:1")]).contains("is not a URL of a server"));
        assert!(refusal("s3://b", &[("aws_endpoint", "h")]).contains("is not a URL of a server"));
        let plain = [("aws_endpoint", "http://h:1"), ("aws_allow_http", "true")];
        assert!(s3("s3://b", &options(&plain)).is_ok());
        assert!(s3("s3://b", &options(&[("aws_endpoint", "https://h")])).is_ok());
    }

    #[test]
    fn unknown_options_are_refused_with_the_nearest_name() {
        assert!(refusal("s3://b", &[("aws_endpont", "x")]).contains("did you mean \"aws_endpoint\""));
        assert!(refusal("s3://b", &[("retry_second", "1")]).contains("did you mean \"retry_seconds\""));
        assert!(refusal("ftp://b", &[]).contains("not built in"));
    }

    #[cfg(not(feature = "gcs"))]
    #[test]
    fn google_says_how_to_build_it() {
        assert!(refusal("gs://b/x", &[]).contains("--features gristmill/gcs"));
    }

    #[cfg(not(feature = "azure"))]
    #[test]
    fn azure_says_how_to_build_it() {
        assert!(refusal("az://b/x", &[]).contains("--features gristmill/azure"));
    }

    #[cfg(feature = "gcs")]
    #[test]
    fn google_opens_and_refuses_unknown_options() {
        let good = StorageOptions::from([("google_skip_signature".to_owned(), "true".to_owned())]);
        assert_eq!(open("gs", "gs://b/x", &good).map(|o| o.root.to_string()).unwrap_or_default(), "x");
        let odd = StorageOptions::from([("google_base_ulr".to_owned(), "x".to_owned())]);
        let text = open("gs", "gs://b/x", &odd).err().unwrap().to_string();
        assert!(text.contains("did you mean \"google_base_url\""), "{text}");
    }

    #[cfg(feature = "azure")]
    #[test]
    fn azure_opens_and_refuses_unknown_options() {
        let good = StorageOptions::from([("azure_storage_use_emulator".to_owned(), "true".to_owned())]);
        assert_eq!(open("az", "az://b/x", &good).map(|o| o.root.to_string()).unwrap_or_default(), "x");
        let odd = StorageOptions::from([("azure_storage_sas_kye".to_owned(), "x".to_owned())]);
        let text = open("az", "az://b/x", &odd).err().unwrap().to_string();
        assert!(text.contains("did you mean \"azure_storage_sas_key\""), "{text}");
    }
}
