// Command franz drives a broker through franz-go and prints one JSON object.
//
//	franz produce -broker B -topic T -records N -value V     as fast as it can, to one partition
//	franz consume -broker B -topic T -records N -partitions P
//	franz small   -broker B -topic T -connections C -seconds S -value V
//	franz latency -broker B -topic T -rate R -seconds S -value V
//	franz connect -broker B -topic T -connections C          open so many, with TLS and a login, and keep them
//	franz transact          -broker B -topic T -partitions P -seconds S -value V     one record to each, commit, again
//	franz transact-bulk     -broker B -topic T -records N -value V                   as fast as it can, in transactions
//	franz transact-latency  -broker B -topic T -rate R -seconds S -value V           one record, commit; to a reader
//
// With -ca FILE -login USER:PASSWORD all of them speak TLS and log in by SCRAM-SHA-512.
//
// Values are unique and incompressible. `digest` sums a hash of partition, offset and contents of each record, so a
// producer's digest (from acknowledgements) equals that of whoever reads back the same records at the same offsets.
// In `small` each connection is a client of its own that sends a record, without linger, when the last one is
// acknowledged. In `latency` time counts from the moment a record was due.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	poolBytes = 1 << 20
	// How long a reader waits for the next record before it gives up.
	patience = 30 * time.Second
)

var (
	broker      = flag.String("broker", "", "HOST:PORT")
	topic       = flag.String("topic", "", "an existing topic")
	records     = flag.Int64("records", 0, "how many records")
	valueBytes  = flag.Int("value", 1024, "bytes of a value")
	partitions  = flag.Int("partitions", 1, "partitions to read")
	connections = flag.Int("connections", 1, "clients that send at once")
	seconds     = flag.Float64("seconds", 2, "how long to send")
	rate        = flag.Float64("rate", 1000, "records per second")
	committed   = flag.Bool("committed", false, "read at read_committed")
	plain       = flag.Bool("plain", false, "transact-bulk: the same flushes, and no transactions")
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
	pool        = randomPool()
)

type percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

type result struct {
	Records   int64        `json:"records"`
	Seconds   float64      `json:"seconds"`
	PerSecond float64      `json:"records_per_second"`
	Megabytes float64      `json:"megabytes_per_second"`
	Digest    string       `json:"digest"`
	Ack       *percentiles `json:"ack_us,omitempty"`
	EndToEnd  *percentiles `json:"end_to_end_us,omitempty"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "franz:", err)
		os.Exit(1)
	}
}

func randomPool() []byte {
	source := rand.NewChaCha8([32]byte{1: byte(os.Getpid()), 2: byte(os.Getpid() >> 8), 3: byte(time.Now().UnixNano())})
	bytes := make([]byte, poolBytes)
	_, err := source.Read(bytes)
	check(err)
	return bytes
}

func mix(z uint64) uint64 {
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

func digest(partition int32, offset int64, value []byte) uint64 {
	place := uint64(partition)<<48 | uint64(offset)
	contents := uint64(len(value))<<32 | uint64(crc32.Checksum(value, castagnoli))
	return mix(place*0x9e3779b97f4a7c15 + contents)
}

// fill makes the value with this number: its number, then random bytes from a place that depends on it.
func fill(value []byte, number uint64) {
	at, _ := bits.Mul64(mix(number+1), uint64(poolBytes-len(value)))
	copy(value, pool[at:])
	binary.BigEndian.PutUint64(value, number)
}

func client(options ...kgo.Opt) *kgo.Client {
	options = append(append(options, kgo.SeedBrokers(*broker), kgo.DefaultProduceTopic(*topic)), secured()...)
	made, err := kgo.NewClient(options...)
	check(err)
	check(made.Ping(context.Background()))
	return made
}

func produce() result {
	producer := client(
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	var sum atomic.Uint64
	// One block per batch of values keeps the allocator out of the measurement.
	const together = 512
	var block []byte
	begun := time.Now()
	for i := int64(0); i < *records; i++ {
		if i%together == 0 {
			block = make([]byte, together**valueBytes)
		}
		value := block[:*valueBytes:*valueBytes]
		block = block[*valueBytes:]
		fill(value, uint64(i))
		producer.Produce(context.Background(), &kgo.Record{Value: value}, func(record *kgo.Record, err error) {
			check(err)
			sum.Add(digest(record.Partition, record.Offset, record.Value))
		})
	}
	check(producer.Flush(context.Background()))
	return summary(*records, time.Since(begun), sum.Load())
}

func consumer() *kgo.Client {
	places := map[int32]kgo.Offset{}
	for i := range *partitions {
		places[int32(i)] = kgo.NewOffset().At(0)
	}
	level := kgo.ReadUncommitted()
	if *committed {
		level = kgo.ReadCommitted()
	}
	return client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{*topic: places}), kgo.FetchIsolationLevel(level))
}

func consume() result {
	reader := consumer()
	var count int64
	var sum uint64
	seen := make([]int64, *partitions)
	begun := time.Now()
	for count < *records {
		patient, enough := context.WithTimeout(context.Background(), patience)
		fetches := reader.PollFetches(patient)
		late := patient.Err() != nil
		enough()
		if late {
			check(fmt.Errorf("only %d of %d records came; by partition %v", count, *records, seen))
		}
		for _, failure := range fetches.Errors() {
			check(failure.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if count < *records {
				sum += digest(record.Partition, record.Offset, record.Value)
				count++
				seen[record.Partition]++
			}
		})
	}
	return summary(count, time.Since(begun), sum)
}

func small() result {
	var sum atomic.Uint64
	var total atomic.Int64
	var all sync.WaitGroup
	producers := make([]*kgo.Client, *connections)
	for i := range producers {
		producers[i] = client(
			kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.MetadataMinAge(time.Second))
	}
	waits := make([][]float64, *connections)
	send := func(i int, number uint64) {
		value := make([]byte, *valueBytes)
		fill(value, uint64(i)<<40|number)
		record := &kgo.Record{Value: value, Partition: int32(i)}
		begun := time.Now()
		check(producers[i].ProduceSync(context.Background(), record).FirstErr())
		waits[i] = append(waits[i], float64(time.Since(begun).Nanoseconds())/1e3)
		sum.Add(digest(record.Partition, record.Offset, value))
		total.Add(1)
	}
	for i := range producers {
		send(i, 0) // the first one learns the topic and connects
		waits[i] = nil
	}
	before, begun := total.Load(), time.Now()
	until := begun.Add(time.Duration(*seconds * float64(time.Second)))
	for i := range producers {
		all.Go(func() {
			for number := uint64(1); time.Now().Before(until); number++ {
				send(i, number)
			}
		})
	}
	all.Wait()
	elapsed := time.Since(begun)
	measured := summary(total.Load()-before, elapsed, sum.Load())
	measured.Records = total.Load()
	measured.Ack = quantiles(slices.Concat(waits...))
	return measured
}

func latency() result {
	producer := client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	reader := consumer()
	count := int64(*rate * *seconds)
	warm := int64(*rate / 2)
	due := make([]time.Time, count)
	acknowledged := make([]float64, count)
	arrived := make([]float64, count)
	var sum atomic.Uint64
	var done sync.WaitGroup
	done.Go(func() {
		for seen := int64(0); seen < count; {
			fetches := reader.PollFetches(context.Background())
			now := time.Now()
			for _, failure := range fetches.Errors() {
				check(failure.Err)
			}
			fetches.EachRecord(func(record *kgo.Record) {
				if record.Offset == seen { // the topic is new and its records lie in the order they were sent
					arrived[seen] = float64(now.Sub(due[seen]).Nanoseconds()) / 1e3
					seen++
				}
			})
		}
	})
	begun := time.Now().Add(50 * time.Millisecond)
	for i := range count {
		due[i] = begun.Add(time.Duration(float64(i) / *rate * 1e9))
	}
	for i := range count {
		time.Sleep(time.Until(due[i]))
		value := make([]byte, *valueBytes)
		fill(value, uint64(i))
		producer.Produce(context.Background(), &kgo.Record{Value: value}, func(record *kgo.Record, err error) {
			check(err)
			acknowledged[i] = float64(time.Since(due[i]).Nanoseconds()) / 1e3
			sum.Add(digest(record.Partition, record.Offset, record.Value))
		})
	}
	check(producer.Flush(context.Background()))
	done.Wait()
	measured := summary(count, time.Since(begun), sum.Load())
	measured.Ack = quantiles(acknowledged[min(warm, count/4):])
	measured.EndToEnd = quantiles(arrived[min(warm, count/4):])
	return measured
}

func quantiles(values []float64) *percentiles {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	return &percentiles{values[len(values)/2], values[len(values)*99/100], values[len(values)-1]}
}

func summary(count int64, elapsed time.Duration, sum uint64) result {
	perSecond := float64(count) / elapsed.Seconds()
	return result{Records: count, Seconds: elapsed.Seconds(), PerSecond: perSecond,
		Megabytes: perSecond * float64(*valueBytes) / 1e6, Digest: fmt.Sprintf("%016x", sum)}
}

func main() {
	modes := map[string]func() result{
		"produce": produce, "consume": consume, "small": small, "latency": latency, "connect": connect,
		"transact": transact, "transact-bulk": transactBulk, "transact-latency": transactLatency,
	}
	if len(os.Args) < 2 || modes[os.Args[1]] == nil {
		check(fmt.Errorf("the first argument is one of %v", slices.Sorted(maps.Keys(modes))))
	}
	check(flag.CommandLine.Parse(os.Args[2:]))
	check(json.NewEncoder(os.Stdout).Encode(modes[os.Args[1]]()))
}
