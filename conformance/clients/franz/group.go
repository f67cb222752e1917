package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// As in voice.py: short heartbeats, and time-outs that no rebalance of members that answer should wait for.
const (
	sessionTimeout    = 15 * time.Second
	heartbeatInterval = 500 * time.Millisecond
	rebalanceTimeout  = 60 * time.Second
	pollTime          = 200 * time.Millisecond

	staticSessionTimeout = 120 * time.Second
)

func groupOptions(seed kgo.Opt, asked command, instance *string) ([]kgo.Opt, error) {
	options := []kgo.Opt{
		seed,
		kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeTopics(asked.Topic),
		kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	switch asked.Variant {
	case "classic", "static":
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	case "cooperative":
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	case "consumer":
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	default:
		return nil, fmt.Errorf("no such variant: %s", asked.Variant)
	}
	if instance != nil {
		options = append(options, kgo.InstanceID(*instance))
	}
	return options, nil
}

func group(seed kgo.Opt, asked command, answer map[string]any) error {
	var instance *string
	if asked.Variant == "static" {
		name := asked.Group + "-one"
		instance = &name
	}
	options, err := groupOptions(seed, asked, instance)
	if err != nil {
		return err
	}
	if instance != nil {
		options = append(options, kgo.SessionTimeout(staticSessionTimeout))
	}
	client, err := newClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	records, last, err := takeShare(client, asked)
	if err != nil {
		return err
	}
	committed := map[string]int64{}
	for _, each := range last {
		committed[strconv.Itoa(int(each.Partition))] = each.Offset + 1
	}
	within, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	if err := client.CommitRecords(within, last...); err != nil {
		return err
	}
	if err := client.LeaveGroupContext(within); err != nil {
		return err
	}
	answer["records"] = records
	answer["committed"] = committed
	return nil
}

// takeShare reads the wanted count, no more than so many of a partition, and gives the last record of each partition.
func takeShare(client *kgo.Client, asked command) ([]record, []*kgo.Record, error) {
	records := []record{}
	taken := map[int32]int{}
	last := map[int32]*kgo.Record{}
	within, cancel := context.WithTimeout(context.Background(), time.Duration(asked.TimeoutS*float64(time.Second)))
	defer cancel()
	for len(records) < asked.Count && within.Err() == nil {
		fetched := client.PollFetches(within)
		if within.Err() != nil {
			break
		}
		for _, failed := range fetched.Errors() {
			return nil, nil, fmt.Errorf("%s[%d]: %w", failed.Topic, failed.Partition, failed.Err)
		}
		fetched.EachRecord(func(each *kgo.Record) {
			if len(records) < asked.Count && taken[each.Partition] < asked.Each {
				taken[each.Partition]++
				last[each.Partition] = each
				records = append(records, render(each))
			}
		})
	}
	var ends []*kgo.Record
	for _, each := range last {
		ends = append(ends, each)
	}
	return records, ends, nil
}

// say prints an event of the "member" command.
var saying sync.Mutex

func say(event string, details map[string]any) {
	saying.Lock()
	defer saying.Unlock()
	details["event"] = event
	details["at"] = float64(time.Now().UnixMicro()) / 1000
	text, _ := json.Marshal(details)
	fmt.Println(string(text))
}

func sayPartitions(event string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		for _, partitions := range topics {
			slices.Sort(partitions)
			say(event, map[string]any{"partitions": partitions})
		}
	}
}

func member(seed kgo.Opt, asked command) error {
	options, err := groupOptions(seed, asked, asked.Instance)
	if err != nil {
		return err
	}
	// Rebalances wait until what was polled has been handed to the broker.
	options = append(options,
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.FetchMaxWait(pollTime),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(sayPartitions("assigned")),
		kgo.OnPartitionsRevoked(func(within context.Context, client *kgo.Client, topics map[string][]int32) {
			if err := commit(within, client); err != nil {
				fmt.Fprintln(os.Stderr, "commit when revoked:", err)
			}
			sayPartitions("revoked")(within, client, topics)
		}),
		kgo.OnPartitionsLost(sayPartitions("lost")),
	)
	client, err := newClient(options...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	var leave atomic.Bool
	go func() {
		_, _ = input.ReadBytes('\n')
		leave.Store(true)
	}()
	for !leave.Load() {
		if err := consumeOnce(client); err != nil {
			return err
		}
		client.AllowRebalance()
	}
	within, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return client.LeaveGroupContext(within)
}

func consumeOnce(client *kgo.Client) error {
	within, cancel := context.WithTimeout(context.Background(), pollTime)
	fetched := client.PollRecords(within, 500)
	cancel()
	for _, failed := range fetched.Errors() {
		if failed.Err != context.DeadlineExceeded {
			return fmt.Errorf("%s[%d]: %w", failed.Topic, failed.Partition, failed.Err)
		}
	}
	fetched.EachPartition(func(read kgo.FetchTopicPartition) {
		offsets := []int64{}
		for _, each := range read.Records {
			offsets = append(offsets, each.Offset)
		}
		if len(offsets) > 0 {
			say("consumed", map[string]any{"partition": read.Partition, "offsets": offsets})
		}
	})
	committing, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return commit(committing, client)
}

// commit leaves what the broker refuses while the group rebalances to the next time.
func commit(within context.Context, client *kgo.Client) error {
	err := client.CommitUncommittedOffsets(within)
	for _, refused := range []error{kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.StaleMemberEpoch} {
		if errors.Is(err, refused) {
			return nil
		}
	}
	return err
}
