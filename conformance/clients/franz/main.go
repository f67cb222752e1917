// franz-go behind the line protocol of conformance/clients/protocol.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
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

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

const commandTimeout = 30 * time.Second

var input = bufio.NewReaderSize(os.Stdin, 1<<20)

func main() {
	bootstrap := flag.String("bootstrap", "", "HOST:PORT of a broker")
	file := flag.String("security", "", "a file that says how to log in")
	flag.Parse()
	var err error
	if login, err = secured(*file); err != nil {
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
			err = run(*bootstrap, asked, answer)
		}
		if err != nil {
			answer = map[string]any{"error": err.Error(), "kind": kindOf(err)}
		}
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
}

func run(bootstrap string, asked command, answer map[string]any) error {
	seed := kgo.SeedBrokers(strings.Split(bootstrap, ",")...)
	switch asked.Do {
	case "create":
		return create(seed, asked)
	case "produce":
		return produce(seed, asked, answer)
	case "flood":
		return flood(seed, asked, answer)
	case "consume":
		return consume(seed, asked, answer)
	case "group":
		return group(seed, asked, answer)
	case "member":
		return member(seed, asked)
	case "link":
		return link(seed, asked)
	}
	if step, known := steps[asked.Do]; known {
		return step(seed, asked, answer)
	}
	return fmt.Errorf("no such command: %s", asked.Do)
}

func create(seed kgo.Opt, asked command) error {
	client, err := newClient(seed)
	if err != nil {
		return err
	}
	defer client.Close()
	within, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	_, err = kadm.NewClient(client).CreateTopic(within, asked.Partitions, 1, nil, asked.Topic)
	return err
}

func produce(seed kgo.Opt, asked command, answer map[string]any) error {
	client, err := newClient(
		seed,
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[asked.Codec]),
		kgo.ProducerLinger(50*time.Millisecond),
		kgo.RequiredAcks(kgo.AllISRAcks()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	within, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	batch := make([]*kgo.Record, 0, len(asked.Records))
	for _, each := range asked.Records {
		sent := &kgo.Record{Topic: asked.Topic, Partition: asked.Partition, Key: each.Key, Value: each.Value}
		if each.Timestamp != nil {
			sent.Timestamp = time.UnixMilli(*each.Timestamp)
		}
		for _, pair := range each.Headers {
			sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: pair.name, Value: pair.value})
		}
		batch = append(batch, sent)
	}
	results := client.ProduceSync(within, batch...)
	if err := results.FirstErr(); err != nil {
		return err
	}
	offsets := make([]int64, 0, len(batch))
	for _, each := range batch {
		offsets = append(offsets, each.Offset)
	}
	answer["offsets"] = offsets
	return nil
}

// flooder outlives commands. It comes back soon after the broker does; idempotence is the default. Its settings
// are known to be right, so a connection that is closed at its first request means a broker that was killed.
var flooder *kgo.Client

func flood(seed kgo.Opt, asked command, answer map[string]any) error {
	if flooder == nil {
		client, err := newClient(
			seed,
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ProducerLinger(2*time.Millisecond),
			kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
			kgo.MetadataMinAge(50*time.Millisecond),
			kgo.AlwaysRetryEOF(),
		)
		if err != nil {
			return err
		}
		flooder = client
	}
	within, cancel := context.WithTimeout(context.Background(), 3*commandTimeout)
	defer cancel()
	batch := make([]*kgo.Record, 0, len(asked.Records))
	for _, each := range asked.Records {
		batch = append(batch, &kgo.Record{Topic: asked.Topic, Partition: each.Partition, Key: each.Key, Value: each.Value})
	}
	if err := flooder.ProduceSync(within, batch...).FirstErr(); err != nil {
		return err
	}
	offsets := make([]int64, 0, len(batch))
	for _, each := range batch {
		offsets = append(offsets, each.Offset)
	}
	answer["offsets"] = offsets
	return nil
}

func consume(seed kgo.Opt, asked command, answer map[string]any) error {
	start := map[int32]kgo.Offset{asked.Partition: kgo.NewOffset().At(asked.Offset)}
	client, err := newClient(
		seed,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{asked.Topic: start}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(isolation(asked.Committed)),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	records, err := poll(client, asked)
	answer["records"] = records
	return err
}

func poll(client *kgo.Client, asked command) ([]record, error) {
	records := []record{}
	within, cancel := context.WithTimeout(context.Background(), time.Duration(asked.TimeoutS*float64(time.Second)))
	defer cancel()
	for len(records) < asked.Count {
		fetched := client.PollRecords(within, asked.Count-len(records))
		if within.Err() != nil {
			return records, nil
		}
		for _, failed := range fetched.Errors() {
			return nil, fmt.Errorf("%s[%d]: %w", failed.Topic, failed.Partition, failed.Err)
		}
		fetched.EachRecord(func(each *kgo.Record) { records = append(records, render(each)) })
	}
	return records, nil
}

func render(each *kgo.Record) record {
	stamp := each.Timestamp.UnixMilli()
	read := record{
		Key: each.Key, Value: each.Value, Headers: []header{}, Timestamp: &stamp,
		Offset: each.Offset, Partition: each.Partition,
	}
	for _, pair := range each.Headers {
		read.Headers = append(read.Headers, header{pair.Key, pair.Value})
	}
	return read
}
