//! Deletes what a test made: the emulator keeps threads for every subscription that it has, and after a few hundred
//! tests it would have thousands, and no time for the next one.

use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::{SubscriptionAdmin, TopicAdmin};

/// Deletes a topic and subscriptions, all given as full names, whether they are there or not. To be called when a value
/// is dropped: it has a thread and a runtime of its own, and waits.
pub(crate) fn delete(endpoint: &str, topic: &str, subscriptions: &[String]) {
    let work = async || -> Option<()> {
        let credentials = || anonymous::Builder::new().build();
        let admin = SubscriptionAdmin::builder().with_endpoint(endpoint).with_credentials(credentials());
        let admin = admin.build().await.ok()?;
        for name in subscriptions {
            // Best effort: a case may have deleted it, or not have come so far as to make it.
            drop(admin.delete_subscription().set_subscription(name).send().await);
        }
        let admin = TopicAdmin::builder().with_endpoint(endpoint).with_credentials(credentials()).build().await.ok()?;
        drop(admin.delete_topic().set_topic(topic).send().await);
        Some(())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async { tokio::time::timeout(std::time::Duration::from_secs(10), work()).await.ok()? })
        });
    });
}
