package main

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

// transactCommand has what the steps of a transaction need.
type transactCommand struct {
	ID        string          `json:"id"`
	TimeoutMs int64           `json:"timeout_ms"`
	Offsets   json.RawMessage `json:"offsets"`
}

type step func(p program, asked command, answer map[string]any) error

var steps = map[string]step{
	"open": openProducer, "send": send, "offsets": sendOffsets,
	"begin":  func(program, command, map[string]any) error { return transactor.BeginTxn() },
	"commit": func(program, command, map[string]any) error { return transactor.CommitTxn() },
	"abort":  func(program, command, map[string]any) error { return transactor.AbortTxn() },
	"close":  func(program, command, map[string]any) error { return transactor.Close() },
}

// transactor outlives commands.
var transactor sarama.SyncProducer

func openProducer(p program, asked command, _ map[string]any) error {
	config := p.config()
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	config.Net.MaxOpenRequests = 1
	config.Producer.Transaction.ID = asked.ID
	config.Producer.Transaction.Timeout = time.Duration(asked.TimeoutMs) * time.Millisecond
	producer, err := sarama.NewSyncProducer(p.brokers, config)
	if err != nil {
		return err
	}
	transactor = producer
	return nil
}

func send(p program, asked command, answer map[string]any) error {
	messages := make([]*sarama.ProducerMessage, 0, len(asked.Records))
	for _, each := range asked.Records {
		value := sarama.ByteEncoder(each.Value)
		messages = append(messages, &sarama.ProducerMessage{Topic: asked.Topic, Partition: each.Partition, Value: value})
	}
	if err := transactor.SendMessages(messages); err != nil {
		if all, many := err.(sarama.ProducerErrors); many {
			return all[0].Err
		}
		return err
	}
	offsets := make([]int64, 0, len(messages))
	for _, each := range messages {
		offsets = append(offsets, each.Offset)
	}
	answer["offsets"] = offsets
	return nil
}

func sendOffsets(p program, asked command, _ map[string]any) error {
	given := map[string]int64{}
	if err := json.Unmarshal(asked.transactCommand.Offsets, &given); err != nil {
		return err
	}
	offsets := []*sarama.PartitionOffsetMetadata{}
	for partition, offset := range given {
		number, _ := strconv.Atoi(partition)
		offsets = append(offsets, &sarama.PartitionOffsetMetadata{Partition: int32(number), Offset: offset, LeaderEpoch: -1})
	}
	return transactor.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{asked.Topic: offsets}, asked.Group)
}
