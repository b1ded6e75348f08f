//! What the server does in one step. Redis knows no lease: whoever claims a message has it, whoever had it before, and an
//! acknowledgement is taken from anybody. So each of these first looks whether the message is still with the consumer, and
//! handed over as often as when it came: nobody else has had it since.

use std::sync::LazyLock;

use redis::Script;

/// Of the entries (pairs of id and count), how many were acked. Deleted, too, when it says `1`.
pub(crate) static ACK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local key, group, me = KEYS[1], ARGV[1], ARGV[2]
        local acked = 0
        for at = 4, #ARGV, 2 do
            local held = redis.call('XPENDING', key, group, ARGV[at], ARGV[at], 1, me)[1]
            if held and held[4] == tonumber(ARGV[at + 1]) then
                acked = acked + redis.call('XACK', key, group, ARGV[at])
                if ARGV[3] == '1' then redis.call('XDEL', key, ARGV[at]) end
            end
        end
        return acked",
    )
});

/// Begins the leases of entries (pairs of id and count) anew; the places of those that are lost, from 0.
pub(crate) static EXTEND: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local key, group, me = KEYS[1], ARGV[1], ARGV[2]
        local lost = {}
        for at = 3, #ARGV, 2 do
            local held = redis.call('XPENDING', key, group, ARGV[at], ARGV[at], 1, me)[1]
            local mine = held and held[4] == tonumber(ARGV[at + 1])
            if not mine or not redis.call('XCLAIM', key, group, me, 0, ARGV[at], 'JUSTID')[1] then
                lost[#lost + 1] = (at - 3) / 2
            end
        end
        return lost",
    )
});

/// Gives entries (pairs of id and count) to the consumer that nobody is; how many. Not counted as handed over.
pub(crate) static GIVE_BACK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local key, group, me, nobody = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
        local given = 0
        for at = 4, #ARGV, 2 do
            local held = redis.call('XPENDING', key, group, ARGV[at], ARGV[at], 1, me)[1]
            if held and held[4] == tonumber(ARGV[at + 1]) then
                given = given + #redis.call('XCLAIM', key, group, nobody, 0, ARGV[at], 'JUSTID')
            end
        end
        return given",
    )
});

/// Takes what was given back, and then what others have held for longer than a lease: where to go on looking, and for each
/// entry its id, how often it was handed over, whether its lease had ended, and its fields.
///
/// How far it looks is bounded: everybody else waits meanwhile.
pub(crate) static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local key, group, me, nobody = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
        local lease, room, cursor = ARGV[4], tonumber(ARGV[5]), ARGV[6]
        local taken = {}
        for _, held in ipairs(redis.call('XPENDING', key, group, '-', '+', room, nobody)) do
            local entry = redis.call('XCLAIM', key, group, me, 0, held[1])[1]
            if entry then taken[#taken + 1] = {held[1], held[4] + 1, 0, entry[2]} end
        end
        local rounds = math.max(10, math.floor(1000 / room))
        while #taken < room and rounds > 0 do
            local found = redis.call('XAUTOCLAIM', key, group, me, lease, cursor, 'COUNT', room - #taken)
            cursor = found[1]
            for _, entry in ipairs(found[2]) do
                local held = redis.call('XPENDING', key, group, entry[1], entry[1], 1)[1]
                taken[#taken + 1] = {entry[1], held[4], 1, entry[2]}
            end
            if cursor == '0-0' then break end
            rounds = rounds - 1
        end
        return {cursor, taken}",
    )
});

/// Gives everything back that is with a consumer, and removes it. With anything left it stays: removing a consumer forgets
/// what is with it.
pub(crate) static LEAVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local key, group, me, nobody = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
        for _ = 1, 100 do
            local rest = redis.call('XPENDING', key, group, '-', '+', 1000, me)
            if #rest == 0 then
                redis.call('XGROUP', 'DELCONSUMER', key, group, me)
                return 1
            end
            for _, held in ipairs(rest) do redis.call('XCLAIM', key, group, nobody, 0, held[1], 'JUSTID') end
        end
        return 0",
    )
});

/// Removes consumers whose names begin as ours do, with nothing pending, which were not seen for some milliseconds: what
/// crashed processes leave. One that lives after all is made again by its next read.
pub(crate) static SWEEP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local key, group, prefix, unseen = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
        local removed = 0
        for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
            local of = {}
            for at = 1, #consumer, 2 do of[consumer[at]] = consumer[at + 1] end
            if string.sub(of.name, 1, #prefix) == prefix and of.pending == 0 and of.idle > unseen then
                redis.call('XGROUP', 'DELCONSUMER', key, group, of.name)
                removed = removed + 1
            end
        end
        return removed",
    )
});

/// How many entries a group has not acked. They are counted unless they are many: the server's own figure (`lag`) is unknown
/// once something was deleted, and wrong after a trim beyond what was handed over.
pub(crate) static BACKLOG: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local key, group = KEYS[1], ARGV[1]
        local pending = redis.call('XPENDING', key, group)[1]
        for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
            local of = {}
            for at = 1, #info, 2 do of[info[at]] = info[at + 1] end
            if of.name == group then
                local after, waiting = of['last-delivered-id'], 0
                while true do
                    local some = redis.call('XRANGE', key, '(' .. after, '+', 'COUNT', 1000)
                    if #some == 0 then return pending + waiting end
                    waiting, after = waiting + #some, some[#some][1]
                    if waiting >= 10000 and of.lag then return pending + math.max(waiting, of.lag) end
                end
            end
        end",
    )
});

/// Deletes what every group has acked; how many entries. Nothing while there is no group.
pub(crate) static TRIM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local key = KEYS[1]
        local function less(a, b)
            local am, as = string.match(a, '(%d+)-(%d+)')
            local bm, bs = string.match(b, '(%d+)-(%d+)')
            if #am ~= #bm then return #am < #bm end
            if am ~= bm then return am < bm end
            if #as ~= #bs then return #as < #bs end
            return as < bs
        end
        local keep
        for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
            local of = {}
            for at = 1, #info, 2 do of[info[at]] = info[at + 1] end
            -- The first that is held, or else the last that was handed over, which stays: it marks where the group is.
            local first = redis.call('XPENDING', key, of.name, '-', '+', 1)[1]
            local from = first and first[1] or of['last-delivered-id']
            if not keep or less(from, keep) then keep = from end
        end
        if not keep then return 0 end
        return redis.call('XTRIM', key, 'MINID', keep)",
    )
});
