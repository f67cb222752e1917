package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// transactCommand has what the steps of a transaction and the link of a chain need.
type transactCommand struct {
	ID         string          `json:"id"`
	TimeoutMs  int64           `json:"timeout_ms"`
	Offsets    json.RawMessage `json:"offsets"`
	Name       string          `json:"name"`
	Input      string          `json:"input"`
	Outputs    []string        `json:"outputs"`
	Batch      int             `json:"batch"`
	AbortEvery int             `json:"abort_every"`
}

type step func(seed kgo.Opt, asked command, answer map[string]any) error

var steps = map[string]step{
	"open": openProducer, "begin": begin, "send": send, "offsets": sendOffsets,
	"commit": end(kgo.TryCommit), "abort": end(kgo.TryAbort), "close": closeProducer,
}

const stepTimeout = 60 * time.Second

// transactor outlives commands.
var (
	transactor   *kgo.Client
	transactorID string
)

func isolation(committed bool) kgo.IsolationLevel {
	if committed {
		return kgo.ReadCommitted()
	}
	return kgo.ReadUncommitted()
}

// kindOf is the name of the broker's error if it is one.
func kindOf(err error) string {
	var refused *kerr.Error
	if errors.As(err, &refused) {
		return refused.Message
	}
	return err.Error()
}

func openProducer(seed kgo.Opt, asked command, _ map[string]any) error {
	client, err := newClient(
		seed,
		kgo.TransactionalID(asked.ID),
		kgo.TransactionTimeout(time.Duration(asked.TimeoutMs)*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5*time.Millisecond),
	)
	if err != nil {
		return err
	}
	transactor, transactorID = client, asked.ID
	within, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	// It asks for its producer id when that is first needed.
	_, _, err = client.ProducerID(within)
	return err
}

func begin(kgo.Opt, command, map[string]any) error { return transactor.BeginTransaction() }

func send(_ kgo.Opt, asked command, answer map[string]any) error {
	within, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	batch := make([]*kgo.Record, 0, len(asked.Records))
	for _, each := range asked.Records {
		batch = append(batch, &kgo.Record{Topic: asked.Topic, Partition: each.Partition, Value: each.Value})
	}
	if err := transactor.ProduceSync(within, batch...).FirstErr(); err != nil {
		return err
	}
	offsets := make([]int64, 0, len(batch))
	for _, each := range batch {
		offsets = append(offsets, each.Offset)
	}
	answer["offsets"] = offsets
	return nil
}

// sendOffsets speaks the two requests itself: the library has them for members of a group only (see link).
func sendOffsets(_ kgo.Opt, asked command, _ map[string]any) error {
	within, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	id, epoch, err := transactor.ProducerID(within)
	if err != nil {
		return err
	}
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = transactorID, id, epoch, asked.Group
	added, err := add.RequestWith(within, transactor)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(added.ErrorCode); err != nil {
		return err
	}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch, commit.Group = transactorID, id, epoch, asked.Group
	offsets := map[string]int64{}
	if err := json.Unmarshal(asked.transactCommand.Offsets, &offsets); err != nil {
		return err
	}
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic = asked.Topic
	for partition, offset := range offsets {
		number, _ := strconv.Atoi(partition)
		one := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		one.Partition, one.Offset = int32(number), offset
		topic.Partitions = append(topic.Partitions, one)
	}
	commit.Topics = append(commit.Topics, topic)
	committed, err := commit.RequestWith(within, transactor)
	if err != nil {
		return err
	}
	for _, found := range committed.Topics {
		for _, one := range found.Partitions {
			if err := kerr.ErrorForCode(one.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}

func end(how kgo.TransactionEndTry) step {
	return func(kgo.Opt, command, map[string]any) error {
		within, cancel := context.WithTimeout(context.Background(), stepTimeout)
		defer cancel()
		return transactor.EndTransaction(within, how)
	}
}

func closeProducer(kgo.Opt, command, map[string]any) error {
	transactor.Close()
	return nil
}

// tell prints an event of the "link" command.
func tell(event, name string, details map[string]any) {
	saying.Lock()
	defer saying.Unlock()
	details["event"], details["name"] = event, name
	details["at"] = float64(time.Now().UnixMicro()) / 1e6
	text, _ := json.Marshal(details)
	fmt.Println(string(text))
}

func link(seed kgo.Opt, asked command) error {
	session, err := newGroupSession(
		seed,
		kgo.TransactionalID(asked.ID),
		kgo.TransactionTimeout(time.Duration(asked.TimeoutMs)*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeTopics(asked.Input),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.FetchMaxWait(pollTime),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.MetadataMinAge(100*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	var leave atomic.Bool
	go func() {
		_, _ = input.ReadBytes('\n')
		leave.Store(true)
	}()
	tell("ready", asked.Name, map[string]any{})
	for number := 1; !leave.Load(); {
		within, cancel := context.WithTimeout(context.Background(), pollTime)
		fetched := session.PollRecords(within, asked.Batch)
		cancel()
		records := fetched.Records()
		if len(records) == 0 {
			continue
		}
		if err := transact(session, asked, number, records); err != nil {
			return err
		}
		number++
	}
	return nil
}

// transact runs one transaction; after an abort the session consumes the same records again.
func transact(session *kgo.GroupTransactSession, asked command, number int, records []*kgo.Record) error {
	name := fmt.Sprintf("%s.%d", asked.Name, number)
	appends := [][]string{}
	outgoing := []*kgo.Record{}
	starts, ends := map[int32]int64{}, map[int32]int64{}
	for _, one := range records {
		if _, known := starts[one.Partition]; !known {
			starts[one.Partition] = one.Offset
		}
		ends[one.Partition] = one.Offset + 1
		for turn, output := range asked.Outputs {
			partition := one.Partition
			if turn > 0 {
				partition = int32(one.Offset % int64(asked.Partitions))
			}
			value := fmt.Sprintf("%s|%s.%d", one.Value, name, turn)
			appends = append(appends, []string{fmt.Sprintf("%s-%d", output, partition), value})
			outgoing = append(outgoing, &kgo.Record{Topic: output, Partition: partition, Value: []byte(value)})
		}
	}
	moves := [][]any{}
	for partition, finish := range ends {
		moves = append(moves, []any{fmt.Sprintf("%s-%d", asked.Input, partition), starts[partition], finish})
	}
	tell("begin", name, map[string]any{"appends": appends, "moves": moves})
	if err := session.Begin(); err != nil {
		tell("ended", name, map[string]any{"outcome": "aborted", "why": err.Error()})
		return err
	}
	within, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	how, why := kgo.TryCommit, ""
	if err := session.ProduceSync(within, outgoing...).FirstErr(); err != nil {
		how, why = kgo.TryAbort, "produce: "+err.Error()
	}
	if asked.AbortEvery > 0 && number%asked.AbortEvery == 0 {
		how = kgo.TryAbort
	}
	if how == kgo.TryCommit {
		tell("asked", name, map[string]any{})
	}
	committed, err := session.End(within, how)
	outcome := "aborted"
	switch {
	case committed:
		outcome = "committed"
	case err == nil && bool(how):
		why = "the session did not want to commit"
	case err != nil && bool(how):
		outcome = "unknown"
	}
	if err != nil {
		why = err.Error()
	}
	tell("ended", name, map[string]any{"outcome": outcome, "why": why})
	return err
}
