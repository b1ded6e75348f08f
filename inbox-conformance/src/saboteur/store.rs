//! Wrong stores.

use std::{
    collections::HashMap,
    error::Error,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_core::{
    Blame, BoxError, Candidate, Claim, Claims, ConsumerId, HandlerError, InboxStore, Limits, MessageId, StoreError,
    StoreErrorKind,
    failure_store::{Failure, FailureRow, FailureStore},
    maintenance::{Counts, Maintenance},
    operator::Operator,
};

use crate::harness::{StoreFeatures, StoreSubject, Tx, unique};

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table of saboteurs says it of each")]
pub enum StoreSabotage {
    None,
    ForgetsLast,
    ClaimsOutside,
    EffectsOutside,
    NeverWaits,
    SwallowsClaimTimeout,
    IgnoresFingerprint,
    MixesFingerprints,
    UnclaimsNothing,
    CommitsUnresolved,
    IgnoresAborted,
    IgnoresEscape,
    RollsBackAtCommit,
    CountsInMemory,
    GivesUpSilently,
    KeepsNothing,
    SharesConsumers,
    RegistersAnew,
    MigratesOnce,
    ReadsErrorTexts,
    BlamesItself,
    ClaimsOneByOne,
    HidesFailures,
}

/// A subject whose stores are wrong in one way.
#[derive(Debug)]
pub struct SabotagedStoreSubject<S> {
    inner: Arc<S>,
    how: StoreSabotage,
}

impl<S: StoreSubject> SabotagedStoreSubject<S> {
    /// Makes `inner` wrong.
    #[must_use]
    pub fn new(inner: Arc<S>, how: StoreSabotage) -> Self {
        Self { inner, how }
    }
}

impl<S: StoreSubject> StoreSubject for SabotagedStoreSubject<S> {
    type Store = SabotagedStore<S::Store>;

    fn name(&self) -> &str {
        self.inner.name()
    }
    fn features(&self) -> StoreFeatures {
        self.inner.features()
    }
    async fn open(&self) -> Result<Arc<Self::Store>, BoxError> {
        let (inner, how) = (self.inner.open().await?, self.how);
        let (attempts, migrated) = (Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(SabotagedStore { inner, how, attempts, migrated }))
    }
    async fn apply(&self, tx: &mut Tx<Self>, scope: &str, effect: &str) -> Result<(), HandlerError> {
        if self.how != StoreSabotage::EffectsOutside {
            return self.inner.apply(tx, scope, effect).await;
        }
        let store = self.inner.open().await.map_err(HandlerError::retry)?;
        let mut own = store.begin(&Limits::default()).await?;
        let claims = store.claim(&mut own, ConsumerId(i32::MAX), &[]).await?;
        self.inner.apply(&mut own, scope, effect).await?;
        Ok(store.commit(own, claims).await?)
    }
    async fn effects(&self, scope: &str) -> Result<Vec<String>, BoxError> {
        self.inner.effects(scope).await
    }
    async fn failing_statement(&self, tx: &mut Tx<Self>) -> Result<(), HandlerError> {
        self.inner.failing_statement(tx).await
    }
    async fn raw_commit(&self, tx: &mut Tx<Self>) -> Result<(), HandlerError> {
        self.inner.raw_commit(tx).await
    }
    async fn raw_rollback(&self, tx: &mut Tx<Self>) -> Result<(), HandlerError> {
        self.inner.raw_rollback(tx).await
    }
}

/// A store that is wrong in one way.
#[derive(Debug)]
pub struct SabotagedStore<St> {
    inner: Arc<St>,
    how: StoreSabotage,
    attempts: Mutex<HashMap<MessageId, u32>>,
    migrated: AtomicBool,
}

impl<St: InboxStore> SabotagedStore<St> {
    /// Claims of the handler's transaction that say what was found elsewhere.
    async fn claims_that_say(
        &self,
        tx: &mut St::Tx,
        consumer: ConsumerId,
        found: HashMap<MessageId, Claim>,
    ) -> Result<Claims, StoreError> {
        let none = self.inner.claim(tx, consumer, &[]).await?;
        Ok(Claims::new(consumer, none.transaction(), found))
    }

    /// Claims in a transaction of its own that commits at once.
    async fn claim_outside(
        &self,
        consumer: ConsumerId,
        candidates: &[Candidate],
    ) -> Result<HashMap<MessageId, Claim>, StoreError> {
        let mut own = self.inner.begin(&Limits::default()).await?;
        let mut claims = self.inner.claim(&mut own, consumer, candidates).await?;
        let found = found(&claims, candidates);
        found.keys().for_each(|id| claims.done(*id));
        self.inner.commit(own, claims).await?;
        Ok(found)
    }

    /// Looks, at most for a moment, what a claim would find.
    async fn look(&self, consumer: ConsumerId, candidate: Candidate) -> Result<Claim, StoreError> {
        let limits = Limits { claim_wait: Duration::from_millis(1), ..Limits::default() };
        let mut own = self.inner.begin(&limits).await?;
        let looked = self.inner.claim(&mut own, consumer, &[candidate]).await;
        self.inner.rollback(own).await?;
        match looked {
            Ok(claims) => Ok(claims.get(candidate.id).unwrap_or(Claim::New)),
            Err(error) if error.kind() == StoreErrorKind::ClaimTimeout => Ok(Claim::Duplicate),
            Err(error) => Err(error),
        }
    }
}

fn found(claims: &Claims, candidates: &[Candidate]) -> HashMap<MessageId, Claim> {
    candidates.iter().filter_map(|candidate| Some((candidate.id, claims.get(candidate.id)?))).collect()
}

impl<St: InboxStore> InboxStore for SabotagedStore<St> {
    type Tx = St::Tx;

    async fn register(&self, consumer: &str) -> Result<ConsumerId, StoreError> {
        match self.how {
            StoreSabotage::SharesConsumers => self.inner.register("everybody").await,
            StoreSabotage::RegistersAnew => self.inner.register(&unique(consumer)).await,
            _ => self.inner.register(consumer).await,
        }
    }

    async fn begin(&self, limits: &Limits) -> Result<St::Tx, StoreError> {
        self.inner.begin(limits).await
    }

    async fn claim(
        &self,
        tx: &mut St::Tx,
        consumer: ConsumerId,
        candidates: &[Candidate],
    ) -> Result<Claims, StoreError> {
        match self.how {
            StoreSabotage::ForgetsLast => {
                let Some((forgotten, claimed)) = candidates.split_last() else {
                    return self.inner.claim(tx, consumer, candidates).await;
                };
                let claims = self.inner.claim(tx, consumer, claimed).await?;
                let mut found = found(&claims, claimed);
                found.insert(forgotten.id, Claim::New);
                Ok(Claims::new(consumer, claims.transaction(), found))
            }
            StoreSabotage::ClaimsOutside => {
                let found = self.claim_outside(consumer, candidates).await?;
                self.claims_that_say(tx, consumer, found).await
            }
            StoreSabotage::NeverWaits => {
                let mut free = Vec::new();
                let mut known = HashMap::new();
                for candidate in candidates {
                    match self.look(consumer, *candidate).await? {
                        Claim::New => free.push(*candidate),
                        claim => drop(known.insert(candidate.id, claim)),
                    }
                }
                let claims = self.inner.claim(tx, consumer, &free).await?;
                known.extend(found(&claims, &free));
                Ok(Claims::new(consumer, claims.transaction(), known))
            }
            StoreSabotage::SwallowsClaimTimeout => match self.inner.claim(tx, consumer, candidates).await {
                Err(error) if error.kind() == StoreErrorKind::ClaimTimeout => {
                    let fresh = self.inner.begin(&Limits::default()).await?;
                    self.inner.rollback(std::mem::replace(tx, fresh)).await?;
                    let all_new = candidates.iter().map(|candidate| (candidate.id, Claim::New)).collect();
                    self.claims_that_say(tx, consumer, all_new).await
                }
                answer => answer,
            },
            StoreSabotage::IgnoresFingerprint => {
                let alike: Vec<Candidate> =
                    candidates.iter().map(|candidate| Candidate { fingerprint: 0, ..*candidate }).collect();
                self.inner.claim(tx, consumer, &alike).await
            }
            StoreSabotage::MixesFingerprints => {
                let backwards = candidates.iter().rev();
                let mixed: Vec<Candidate> = candidates
                    .iter()
                    .zip(backwards)
                    .map(|(candidate, other)| Candidate { fingerprint: other.fingerprint, ..*candidate })
                    .collect();
                self.inner.claim(tx, consumer, &mixed).await
            }
            StoreSabotage::ClaimsOneByOne => {
                let mut all = HashMap::new();
                let mut transaction = self.inner.claim(tx, consumer, &[]).await?.transaction();
                for candidate in candidates {
                    let claims = self.inner.claim(tx, consumer, &[*candidate]).await?;
                    transaction = claims.transaction();
                    all.extend(found(&claims, &[*candidate]));
                    tokio::task::yield_now().await;
                }
                Ok(Claims::new(consumer, transaction, all))
            }
            _ => self.inner.claim(tx, consumer, candidates).await,
        }
    }

    async fn unclaim(&self, tx: &mut St::Tx, claims: &mut Claims, ids: &[MessageId]) -> Result<(), StoreError> {
        if self.how == StoreSabotage::UnclaimsNothing {
            ids.iter().for_each(|id| claims.unclaimed(*id));
            return Ok(());
        }
        self.inner.unclaim(tx, claims, ids).await
    }

    async fn check(&self, tx: &mut St::Tx, claims: &Claims) -> Result<(), StoreError> {
        self.noticed(self.inner.check(tx, claims).await)
    }

    async fn commit(&self, tx: St::Tx, claims: Claims) -> Result<(), StoreError> {
        match self.how {
            StoreSabotage::CommitsUnresolved => {
                let nothing_to_ask = Claims::new(claims.consumer(), claims.transaction(), HashMap::new());
                self.inner.commit(tx, nothing_to_ask).await
            }
            StoreSabotage::RollsBackAtCommit => self.inner.rollback(tx).await,
            _ => self.noticed(self.inner.commit(tx, claims).await),
        }
    }

    async fn rollback(&self, tx: St::Tx) -> Result<(), StoreError> {
        self.inner.rollback(tx).await
    }

    fn classify(&self, error: &(dyn Error + 'static)) -> Blame {
        match self.how {
            StoreSabotage::BlamesItself => Blame::Infrastructure,
            StoreSabotage::ReadsErrorTexts if error.to_string().contains("deadlock") => Blame::Contention,
            _ => self.inner.classify(error),
        }
    }
}

impl<St> SabotagedStore<St> {
    fn noticed(&self, answer: Result<(), StoreError>) -> Result<(), StoreError> {
        match answer {
            Err(error)
                if (self.how == StoreSabotage::IgnoresAborted
                    && error.kind() == StoreErrorKind::TransactionAborted)
                    || (self.how == StoreSabotage::IgnoresEscape
                        && error.kind() == StoreErrorKind::TransactionEscaped) =>
            {
                Ok(())
            }
            answer => answer,
        }
    }
}

impl<St: FailureStore> FailureStore for SabotagedStore<St> {
    async fn record_attempt(&self, consumer: ConsumerId, failure: &Failure) -> Result<Option<u32>, StoreError> {
        let counted = self.inner.record_attempt(consumer, failure).await?;
        if self.how != StoreSabotage::CountsInMemory || counted.is_none() {
            return Ok(counted);
        }
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let attempts = attempts.entry(failure.id).or_default();
        *attempts += 1;
        Ok(Some(*attempts))
    }

    async fn give_up(&self, tx: &mut St::Tx, claims: &mut Claims, failure: &Failure) -> Result<(), StoreError> {
        if self.how == StoreSabotage::GivesUpSilently {
            claims.given_up(failure.id);
            return Ok(());
        }
        self.inner.give_up(tx, claims, failure).await
    }

    async fn keep(&self, tx: &mut St::Tx, consumer: ConsumerId, failure: &Failure) -> Result<(), StoreError> {
        if self.how == StoreSabotage::KeepsNothing {
            return Ok(());
        }
        self.inner.keep(tx, consumer, failure).await
    }

    async fn forget_attempts(&self, tx: &mut St::Tx, consumer: ConsumerId, id: MessageId) -> Result<(), StoreError> {
        self.inner.forget_attempts(tx, consumer, id).await
    }
}

impl<St: Maintenance> Maintenance for SabotagedStore<St> {
    async fn migrate(&self) -> Result<(), StoreError> {
        self.inner.migrate().await?;
        if self.how == StoreSabotage::MigratesOnce && self.migrated.swap(true, Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Schema, "migrate").context("the tables are there"));
        }
        Ok(())
    }

    async fn counts(&self, consumer: ConsumerId) -> Result<Counts, StoreError> {
        self.inner.counts(consumer).await
    }
}

#[async_trait]
impl<St: Operator> Operator for SabotagedStore<St> {
    async fn counts_of(&self, consumer: &str) -> Result<Counts, StoreError> {
        self.inner.counts_of(consumer).await
    }

    async fn failures(&self, consumer: &str, most: u32) -> Result<Vec<FailureRow>, StoreError> {
        if self.how != StoreSabotage::HidesFailures {
            return self.inner.failures(consumer, most).await;
        }
        let mut rows = self.inner.failures(consumer, u32::MAX).await?;
        rows.reverse();
        rows.truncate(most as usize);
        Ok(rows)
    }
}
