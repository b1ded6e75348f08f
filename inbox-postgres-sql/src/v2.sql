-- By which fingerprints others have claimed those of `ids` that are not in `mine`; ordered by id. VOLATILE, so that its
-- query has a snapshot of its own, newer than the commits for which the claim that calls it has waited. One look into
-- the index for each id, by a plan that is kept: of a young table the statistics say that it is empty, and a plan made
-- by them would go on to read all of it when it has grown.
CREATE FUNCTION inbox.fingerprints(number int, ids uuid[], mine uuid[]) RETURNS int[] LANGUAGE plpgsql VOLATILE
    SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    answer int[];
BEGIN
    SELECT array_agg(claim.fingerprint ORDER BY other.id) INTO answer
    FROM (SELECT unnest(ids) EXCEPT SELECT unnest(mine)) AS other (id)
    LEFT JOIN LATERAL (
        SELECT c.fingerprint FROM inbox.claims AS c WHERE c.consumer = number AND c.message_id = other.id LIMIT 1
    ) AS claim ON true;
    RETURN answer;
END
$$;
