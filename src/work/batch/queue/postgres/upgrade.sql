-- Changes a queue of version 1 into one of version 2, in one transaction.

alter table guard.lane add column is_paused boolean not null default false;
drop index guard.lane_by_turn;
create index lane_by_turn on guard.lane (priority desc, turn, id) where is_active and not is_paused;
create table guard.command (
    batch text collate "C" not null, command_id text collate "C" not null, cancelled bigint not null,
    primary key (batch, command_id)
);
update guard.meta set value = '2' where name = 'version';
