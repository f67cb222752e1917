// Sarama behind the line protocol of conformance/clients/protocol.py, at the oldest and the newest version it speaks.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type record struct {
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
	Timestamp *int64   `json:"timestamp"`
	Offset    int64    `json:"offset"`
	Partition int32    `json:"partition"`
}

// header is [name, value] in JSON.
type header struct {
	name  string
	value []byte
}

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.name, h.value}) }

func (h *header) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.name, &h.value})
}

type command struct {
	Do         string   `json:"do"`
	Topic      string   `json:"topic"`
	Partitions int32    `json:"partitions"`
	Partition  int32    `json:"partition"`
	Codec      string   `json:"codec"`
	Records    []record `json:"records"`
	Offset     int64    `json:"offset"`
	Count      int      `json:"count"`
	Group      string   `json:"group"`
	Variant    string   `json:"variant"`
	TimeoutS   float64  `json:"timeout_s"`
}

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

// program is one client: the bootstrap address and the protocol version it is held to.
type program struct {
	brokers []string
	version sarama.KafkaVersion
}

func main() {
	bootstrap := flag.String("bootstrap", "", "HOST:PORT of a broker")
	version := flag.String("version", "newest", "a Kafka version such as 0.10.2.0, or newest")
	flag.Parse()
	speaker := program{brokers: []string{*bootstrap}, version: sarama.MaxVersion}
	if *version != "newest" {
		parsed, err := sarama.ParseKafkaVersion(*version)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		speaker.version = parsed
	}
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked command
		answer := map[string]any{}
		if err = json.Unmarshal(line, &asked); err == nil {
			err = speaker.run(asked, answer)
		}
		if err != nil {
			answer = map[string]any{"error": err.Error()}
		}
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
}

func (p program) run(asked command, answer map[string]any) error {
	switch asked.Do {
	case "create":
		return p.create(asked)
	case "produce":
		return p.produce(asked, answer)
	case "consume":
		return p.consume(asked, answer)
	case "group":
		return p.group(asked, answer)
	}
	return fmt.Errorf("no such command: %s", asked.Do)
}

func (p program) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = p.version
	config.ClientID = "conformance"
	return config
}

func (p program) create(asked command) error {
	admin, err := sarama.NewClusterAdmin(p.brokers, p.config())
	if err != nil {
		return err
	}
	defer admin.Close()
	return admin.CreateTopic(asked.Topic, &sarama.TopicDetail{NumPartitions: asked.Partitions, ReplicationFactor: 1}, false)
}

func (p program) produce(asked command, answer map[string]any) error {
	config := p.config()
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Compression = codecs[asked.Codec]
	config.Producer.Return.Successes = true
	config.Producer.Flush.Frequency = 50 * time.Millisecond
	producer, err := sarama.NewSyncProducer(p.brokers, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	messages := make([]*sarama.ProducerMessage, 0, len(asked.Records))
	for _, each := range asked.Records {
		messages = append(messages, p.message(asked, each))
	}
	if err := producer.SendMessages(messages); err != nil {
		return err
	}
	offsets := make([]int64, 0, len(messages))
	for _, each := range messages {
		offsets = append(offsets, each.Offset)
	}
	answer["offsets"] = offsets
	return nil
}

func (p program) message(asked command, each record) *sarama.ProducerMessage {
	message := &sarama.ProducerMessage{Topic: asked.Topic, Partition: asked.Partition}
	if each.Key != nil {
		message.Key = sarama.ByteEncoder(each.Key)
	}
	if each.Value != nil {
		message.Value = sarama.ByteEncoder(each.Value)
	}
	if each.Timestamp != nil {
		message.Timestamp = time.UnixMilli(*each.Timestamp)
	}
	for _, pair := range each.Headers {
		message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(pair.name), Value: pair.value})
	}
	return message
}

func (p program) consume(asked command, answer map[string]any) error {
	config := p.config()
	config.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer(p.brokers, config)
	if err != nil {
		return err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(asked.Topic, asked.Partition, asked.Offset)
	if err != nil {
		return err
	}
	defer partition.Close()
	records := []record{}
	answer["records"] = &records
	deadline := time.After(time.Duration(asked.TimeoutS * float64(time.Second)))
	for len(records) < asked.Count {
		select {
		case message := <-partition.Messages():
			records = append(records, render(message))
		case failed := <-partition.Errors():
			return failed
		case <-deadline:
			return nil
		}
	}
	return nil
}

// member collects what a group hands to it until it has enough, and commits exactly that.
type member struct {
	lock      sync.Mutex
	wanted    int
	records   []record
	committed map[string]int64
	enough    chan struct{}
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open || !m.take(session, message) {
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) take(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	if len(m.records) >= m.wanted {
		return false
	}
	m.records = append(m.records, render(message))
	m.committed[strconv.Itoa(int(message.Partition))] = message.Offset + 1
	session.MarkMessage(message, "")
	if len(m.records) == m.wanted {
		session.Commit()
		close(m.enough)
	}
	return true
}

func (p program) group(asked command, answer map[string]any) error {
	config := p.config()
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	switch asked.Variant {
	case "classic":
	case "static":
		config.Consumer.Group.InstanceId = asked.Group + "-one"
	default:
		return fmt.Errorf("no such variant: %s", asked.Variant)
	}
	group, err := sarama.NewConsumerGroup(p.brokers, asked.Group, config)
	if err != nil {
		return err
	}
	joined := &member{wanted: asked.Count, records: []record{}, committed: map[string]int64{}, enough: make(chan struct{})}
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		for running.Err() == nil {
			if err := group.Consume(running, []string{asked.Topic}, joined); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	select {
	case <-joined.enough:
	case err = <-group.Errors():
	case err = <-ended:
	case <-time.After(time.Duration(asked.TimeoutS * float64(time.Second))):
	}
	stop()
	if closing := group.Close(); err == nil {
		err = closing
	}
	joined.lock.Lock()
	defer joined.lock.Unlock()
	answer["records"] = joined.records
	answer["committed"] = joined.committed
	return err
}

func render(message *sarama.ConsumerMessage) record {
	stamp := message.Timestamp.UnixMilli()
	read := record{
		Key: message.Key, Value: message.Value, Headers: []header{}, Timestamp: &stamp,
		Offset: message.Offset, Partition: message.Partition,
	}
	for _, pair := range message.Headers {
		read.Headers = append(read.Headers, header{string(pair.Key), pair.Value})
	}
	return read
}
