// Sarama behind the line protocol of conformance/clients/protocol.py, at the oldest and the newest version it speaks.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
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
	Each       int      `json:"each"`
	Variant    string   `json:"variant"`
	Instance   *string  `json:"instance"`
	Committed  bool     `json:"committed"`
	TimeoutS   float64  `json:"timeout_s"`
	transactCommand
}

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

var input = bufio.NewReaderSize(os.Stdin, 1<<20)

// program is one client: the bootstrap address, the protocol version it is held to, and how it logs in.
type program struct {
	brokers []string
	version sarama.KafkaVersion
	login   security
}

func main() {
	bootstrap := flag.String("bootstrap", "", "HOST:PORT of a broker")
	version := flag.String("version", "newest", "a Kafka version such as 0.10.2.0, or newest")
	file := flag.String("security", "", "a file that says how to log in")
	flag.Parse()
	login, err := readSecurity(*file)
	speaker := program{brokers: strings.Split(*bootstrap, ","), version: sarama.MaxVersion, login: login}
	if err == nil && *version != "newest" {
		speaker.version, err = sarama.ParseKafkaVersion(*version)
	}
	if err == nil {
		err = login.secure(speaker.config())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
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
			answer = map[string]any{"error": err.Error(), "kind": err.Error()}
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
	case "member":
		return p.member(asked)
	}
	if step, known := steps[asked.Do]; known {
		return step(p, asked, answer)
	}
	return fmt.Errorf("no such command: %s", asked.Do)
}

func (p program) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = p.version
	config.ClientID = "conformance"
	_ = p.login.secure(config) // main has tried it
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
	if asked.Committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
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
