package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// security is the file that --security names: see conformance/clients/secured.py.
type security struct {
	Protocol, Mechanism, User, Password, Tokens, Ca, Keys string
}

// login is what every client of this program is told besides what its command says.
var login []kgo.Opt

func newClient(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(options, login...)...)
}

func newGroupSession(options ...kgo.Opt) (*kgo.GroupTransactSession, error) {
	return kgo.NewGroupTransactSession(append(options, login...)...)
}

// secured gives what every client of this program is told about logging in.
func secured(path string) ([]kgo.Opt, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var given security
	if err := json.Unmarshal(text, &given); err != nil {
		return nil, err
	}
	var options []kgo.Opt
	if strings.HasSuffix(given.Protocol, "SSL") {
		config, err := given.tls()
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if given.Mechanism != "" {
		mechanism, err := given.mechanism()
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.SASL(mechanism))
	}
	return options, nil
}

func (s security) tls() (*tls.Config, error) {
	trusted, err := os.ReadFile(s.Ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(trusted)
	if s.Keys != "" {
		pair, err := tls.LoadX509KeyPair(s.Keys, s.Keys)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func (s security) mechanism() (sasl.Mechanism, error) {
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := os.ReadFile(s.Tokens)
			return oauth.Auth{Token: string(token)}, err
		}), nil
	}
	return nil, fmt.Errorf("no such mechanism: %s", s.Mechanism)
}
