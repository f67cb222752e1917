package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// As in voice.py: short heartbeats, and time-outs that no rebalance of members that answer should wait for.
const (
	sessionTimeout    = 15 * time.Second
	heartbeatInterval = 500 * time.Millisecond
	rebalanceTimeout  = 60 * time.Second
	pollTime          = 200 * time.Millisecond

	staticSessionTimeout = 120 * time.Second
)

func (p program) groupConfig(variant string, instance *string) (*sarama.Config, error) {
	config := p.config()
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	if variant != "classic" && variant != "static" {
		return nil, fmt.Errorf("no such variant: %s", variant)
	}
	if instance != nil {
		config.Consumer.Group.InstanceId = *instance
	}
	return config, nil
}

// share collects what a group hands to it until it has enough, and commits exactly that.
type share struct {
	lock      sync.Mutex
	wanted    int
	each      int
	taken     map[int32]int
	records   []record
	committed map[string]int64
	enough    chan struct{}
}

func (s *share) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (s *share) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (s *share) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			s.take(session, message)
		case <-session.Context().Done():
			return nil
		}
	}
}

func (s *share) take(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if len(s.records) >= s.wanted || s.taken[message.Partition] >= s.each {
		return
	}
	s.taken[message.Partition]++
	s.records = append(s.records, render(message))
	s.committed[strconv.Itoa(int(message.Partition))] = message.Offset + 1
	session.MarkMessage(message, "")
	if len(s.records) == s.wanted {
		session.Commit()
		close(s.enough)
	}
}

func (p program) group(asked command, answer map[string]any) error {
	var instance *string
	if asked.Variant == "static" {
		name := asked.Group + "-one"
		instance = &name
	}
	config, err := p.groupConfig(asked.Variant, instance)
	if err != nil {
		return err
	}
	if instance != nil {
		config.Consumer.Group.Session.Timeout = staticSessionTimeout
	}
	joined := &share{
		wanted: asked.Count, each: asked.Each, taken: map[int32]int{},
		records: []record{}, committed: map[string]int64{}, enough: make(chan struct{}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-joined.enough:
		case <-time.After(time.Duration(asked.TimeoutS * float64(time.Second))):
		}
	}()
	if err := p.consumeUntil(done, config, asked, joined); err != nil {
		return err
	}
	joined.lock.Lock()
	defer joined.lock.Unlock()
	answer["records"] = joined.records
	answer["committed"] = joined.committed
	return nil
}

// consumeUntil is a member of the group until done is closed, then leaves.
func (p program) consumeUntil(done <-chan struct{}, config *sarama.Config, asked command, handler sarama.ConsumerGroupHandler) error {
	group, err := sarama.NewConsumerGroup(p.brokers, asked.Group, config)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		for running.Err() == nil {
			if err := group.Consume(running, []string{asked.Topic}, handler); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	select {
	case <-done:
	case err = <-group.Errors():
	case err = <-ended:
	}
	stop()
	if closing := group.Close(); err == nil {
		err = closing
	}
	return err
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

// resident stays in the group, consumes, and commits after every few messages.
type resident struct{ commits sync.Mutex }

func (r *resident) Setup(session sarama.ConsumerGroupSession) error {
	sayClaims("assigned", session)
	return nil
}

// Cleanup runs when every claim has ended, before the member joins again or leaves.
func (r *resident) Cleanup(session sarama.ConsumerGroupSession) error {
	sayClaims("revoked", session)
	return nil
}

func sayClaims(event string, session sarama.ConsumerGroupSession) {
	for _, claimed := range session.Claims() {
		partitions := slices.Clone(claimed)
		slices.Sort(partitions)
		say(event, map[string]any{"partitions": partitions})
	}
}

func (r *resident) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			r.process(session, claim, message)
		case <-session.Context().Done():
			return nil
		}
	}
}

// process takes a message and those that wait behind it.
func (r *resident) process(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim, message *sarama.ConsumerMessage) {
	offsets := []int64{}
	for message != nil {
		offsets = append(offsets, message.Offset)
		session.MarkMessage(message, "")
		select {
		case message = <-claim.Messages(): // nil when the claim ends
		default:
			message = nil
		}
	}
	say("consumed", map[string]any{"partition": claim.Partition(), "offsets": offsets})
	r.commits.Lock()
	defer r.commits.Unlock()
	session.Commit()
}

func (p program) member(asked command) error {
	config, err := p.groupConfig(asked.Variant, asked.Instance)
	if err != nil {
		return err
	}
	config.Consumer.Group.Session.Timeout = sessionTimeout
	config.Consumer.Group.Heartbeat.Interval = heartbeatInterval
	config.Consumer.Group.Rebalance.Timeout = rebalanceTimeout
	config.Consumer.MaxWaitTime = pollTime
	leave := make(chan struct{})
	go func() {
		defer close(leave)
		_, _ = input.ReadBytes('\n')
	}()
	return p.consumeUntil(leave, config, asked, &resident{})
}
