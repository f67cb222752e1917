package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// So many records are in a transaction of a bulk produce.
const together = 5_000

// So long a coordinator may take until it is ready.
const readyWithin = 30 * time.Second

func transactor(options ...kgo.Opt) *kgo.Client {
	id := fmt.Sprintf("bench-%d-%d", os.Getpid(), time.Now().UnixNano())
	// Kafka refuses what comes before the markers of the transaction before; the default would wait a quarter of a
	// second then, and measure itself. The number of tries makes up for it.
	backoff := kgo.RetryBackoffFn(func(int) time.Duration { return 2 * time.Millisecond })
	common := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(id), backoff, kgo.RequestRetries(2_000),
	}
	for until := time.Now().Add(readyWithin); ; time.Sleep(100 * time.Millisecond) {
		made := client(append(common, options...)...)
		_, _, err := made.ProducerID(context.Background())
		if err == nil {
			return made
		}
		// The first transactional id has Kafka make the topic of its coordinators.
		if !kerr.IsRetriable(err) || time.Now().After(until) {
			check(err)
		}
		made.Close()
	}
}

// transact commits a record to each partition, again and again. What it gives a second is transactions.
func transact() result {
	producer := transactor(kgo.ProducerLinger(0))
	var sum uint64
	var count, transactions int64
	once := func() {
		batch := make([]*kgo.Record, *partitions)
		for i := range batch {
			value := make([]byte, *valueBytes)
			fill(value, uint64(count)+uint64(i))
			batch[i] = &kgo.Record{Value: value, Partition: int32(i)}
		}
		check(producer.BeginTransaction())
		check(producer.ProduceSync(context.Background(), batch...).FirstErr())
		check(producer.EndTransaction(context.Background(), kgo.TryCommit))
		for _, record := range batch {
			sum += digest(record.Partition, record.Offset, record.Value)
		}
		count += int64(len(batch))
		transactions++
	}
	once() // the first one learns the topic and connects
	long := time.Duration(*seconds * float64(time.Second))
	for warm := time.Now().Add(long / 2); time.Now().Before(warm); {
		once()
	}
	transactions = 0
	begun := time.Now()
	for until := begun.Add(long); time.Now().Before(until); {
		once()
	}
	measured := summary(transactions, time.Since(begun), sum)
	measured.Records = count
	return measured
}

// transactBulk sends as produce() does, in transactions; or plainly, with a flush where each of them would end. Either
// producer has its id before the clock runs.
func transactBulk() result {
	options := []kgo.Opt{kgo.ProducerLinger(5 * time.Millisecond), kgo.MaxBufferedRecords(100_000)}
	var producer *kgo.Client
	begin, end := func() {}, func() {}
	if *plain {
		producer = client(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		_, _, err := producer.ProducerID(context.Background())
		check(err)
	} else {
		producer = transactor(options...)
		begin = func() { check(producer.BeginTransaction()) }
		end = func() { check(producer.EndTransaction(context.Background(), kgo.TryCommit)) }
	}
	var sum atomic.Uint64
	begun := time.Now()
	begin()
	for i := int64(0); i < *records; i++ {
		if i > 0 && i%together == 0 {
			check(producer.Flush(context.Background()))
			end()
			begin()
		}
		value := make([]byte, *valueBytes)
		fill(value, uint64(i))
		producer.Produce(context.Background(), &kgo.Record{Value: value}, func(record *kgo.Record, err error) {
			check(err)
			sum.Add(digest(record.Partition, record.Offset, record.Value))
		})
	}
	check(producer.Flush(context.Background()))
	end()
	return summary(*records, time.Since(begun), sum.Load())
}

// transactLatency times a transaction of one record from the moment it was due: to the answer of the commit, and to a
// reader at read_committed.
func transactLatency() result {
	*committed = true
	producer := transactor(kgo.ProducerLinger(0))
	reader := consumer()
	count := int64(*rate * *seconds)
	due := make([]time.Time, count)
	acknowledged := make([]float64, count)
	arrived := make([]float64, count)
	var sum uint64
	var done sync.WaitGroup
	begun := time.Now().Add(100 * time.Millisecond)
	for i := range count {
		due[i] = begun.Add(time.Duration(float64(i) / *rate * 1e9))
	}
	done.Go(func() {
		for seen := int64(0); seen < count; {
			fetches := reader.PollFetches(context.Background())
			now := time.Now()
			for _, failure := range fetches.Errors() {
				check(failure.Err)
			}
			fetches.EachRecord(func(record *kgo.Record) {
				number := binary.BigEndian.Uint64(record.Value)
				arrived[number] = float64(now.Sub(due[number]).Nanoseconds()) / 1e3
				seen++
			})
		}
	})
	for i := range count {
		time.Sleep(time.Until(due[i]))
		value := make([]byte, *valueBytes)
		fill(value, uint64(i))
		record := &kgo.Record{Value: value}
		check(producer.BeginTransaction())
		check(producer.ProduceSync(context.Background(), record).FirstErr())
		check(producer.EndTransaction(context.Background(), kgo.TryCommit))
		acknowledged[i] = float64(time.Since(due[i]).Nanoseconds()) / 1e3
		sum += digest(record.Partition, record.Offset, record.Value)
	}
	done.Wait()
	measured := summary(count, time.Since(begun), sum)
	measured.Ack = quantiles(acknowledged[count/4:])
	measured.EndToEnd = quantiles(arrived[count/4:])
	return measured
}
