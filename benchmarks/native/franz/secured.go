package main

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var (
	authority = flag.String("ca", "", "PEM file: speak TLS, and trust this")
	login     = flag.String("login", "", "USER:PASSWORD, by SCRAM-SHA-512")
)

const (
	mechanism = "SCRAM-SHA-512"
	atOnce    = 32
)

func tlsConfig() *tls.Config {
	trusted, err := os.ReadFile(*authority)
	check(err)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(trusted)
	return config
}

// secured is what clients are told about security.
func secured() []kgo.Opt {
	if *authority == "" {
		return nil
	}
	user, password, _ := strings.Cut(*login, ":")
	return []kgo.Opt{kgo.DialTLSConfig(tlsConfig()), kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism())}
}

// connect opens connections with TLS and a login, so many at once, and keeps all of them open until the last one is
// there. The salted password is computed once, as it would make most of the time, and is the client's alone.
func connect() result {
	config := tlsConfig()
	host, _, _ := strings.Cut(*broker, ":")
	config.ServerName = host
	var next atomic.Int64
	var salted sync.Map
	var workers sync.WaitGroup
	open := make([]io.Closer, *connections)
	begun := time.Now()
	for range atOnce {
		workers.Go(func() {
			for at := next.Add(1) - 1; at < int64(*connections); at = next.Add(1) - 1 {
				plain, err := tls.Dial("tcp", *broker, config)
				check(err)
				check(authenticate(plain, &salted))
				open[at] = plain
			}
		})
	}
	workers.Wait()
	measured := summary(int64(*connections), time.Since(begun), 0)
	for _, one := range open {
		check(one.Close())
	}
	return measured
}

// ask sends a request of a version without flexible fields, and gives the body of its answer.
func ask(to io.ReadWriter, api, version int16, body []byte) ([]byte, error) {
	head := binary.BigEndian.AppendUint16(nil, uint16(api))
	head = binary.BigEndian.AppendUint16(head, uint16(version))
	head = binary.BigEndian.AppendUint32(head, 1)
	head = append(head, 0, 5, 'b', 'e', 'n', 'c', 'h')
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(head)+len(body)))
	if _, err := to.Write(append(append(frame, head...), body...)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(to, size[:]); err != nil {
		return nil, err
	}
	answer := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(to, answer)
	return answer[4:], err
}

// exchange is SaslAuthenticate 0.
func exchange(to io.ReadWriter, token string) (string, error) {
	answer, err := ask(to, 36, 0, append(binary.BigEndian.AppendUint32(nil, uint32(len(token))), token...))
	if err != nil {
		return "", err
	}
	if code := int16(binary.BigEndian.Uint16(answer)); code != 0 {
		return "", fmt.Errorf("the login was refused with error %d", code)
	}
	return string(answer[8:]), nil // no message, then the token
}

func authenticate(to io.ReadWriter, salted *sync.Map) error {
	user, password, _ := strings.Cut(*login, ":")
	if _, err := ask(to, 17, 1, append([]byte{0, byte(len(mechanism))}, mechanism...)); err != nil {
		return err
	}
	bare := "n=" + user + ",r=" + strconv.FormatInt(time.Now().UnixNano(), 36)
	challenge, err := exchange(to, "n,,"+bare)
	if err != nil {
		return err
	}
	fields := map[string]string{}
	for _, part := range strings.Split(challenge, ",") {
		fields[part[:1]] = part[2:]
	}
	key, known := salted.Load(fields["s"] + fields["i"])
	if !known {
		salt, _ := base64.StdEncoding.DecodeString(fields["s"])
		rounds, _ := strconv.Atoi(fields["i"])
		made, err := pbkdf2.Key(sha512.New, password, salt, rounds, sha512.Size)
		if err != nil {
			return err
		}
		key, _ = salted.LoadOrStore(fields["s"]+fields["i"], made)
	}
	mac := func(key []byte, text string) []byte {
		hash := hmac.New(sha512.New, key)
		hash.Write([]byte(text))
		return hash.Sum(nil)
	}
	clientKey := mac(key.([]byte), "Client Key")
	stored := sha512.Sum512(clientKey)
	unsigned := "c=biws,r=" + fields["r"]
	proof := mac(stored[:], bare+","+challenge+","+unsigned)
	for i := range proof {
		proof[i] ^= clientKey[i]
	}
	_, err = exchange(to, unsigned+",p="+base64.StdEncoding.EncodeToString(proof))
	return err
}
