package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"strings"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// security is the file that --security names: see conformance/clients/secured.py.
type security struct {
	Protocol, Mechanism, User, Password, Tokens, Ca, Keys string
}

func readSecurity(path string) (given security, err error) {
	if path == "" {
		return given, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return given, err
	}
	return given, json.Unmarshal(text, &given)
}

// secure tells a client how to log in.
func (s security) secure(config *sarama.Config) error {
	if strings.HasSuffix(s.Protocol, "SSL") {
		config.Net.TLS.Enable = true
		trusted, err := os.ReadFile(s.Ca)
		if err != nil {
			return err
		}
		config.Net.TLS.Config = &tls.Config{RootCAs: x509.NewCertPool()}
		config.Net.TLS.Config.RootCAs.AppendCertsFromPEM(trusted)
		if s.Keys != "" {
			pair, err := tls.LoadX509KeyPair(s.Keys, s.Keys)
			if err != nil {
				return err
			}
			config.Net.TLS.Config.Certificates = []tls.Certificate{pair}
		}
	}
	if s.Mechanism == "" {
		return nil
	}
	login := &config.Net.SASL
	login.Enable, login.Handshake = true, true
	login.Mechanism = sarama.SASLMechanism(s.Mechanism)
	login.User, login.Password = s.User, s.Password
	// Brokers of before 1.0 know raw tokens alone.
	login.Version = sarama.SASLHandshakeV1
	if !config.Version.IsAtLeast(sarama.V1_0_0_0) {
		login.Version = sarama.SASLHandshakeV0
		config.ApiVersionsRequest = false
	}
	hash := map[string]scram.HashGeneratorFcn{"SCRAM-SHA-256": scram.SHA256, "SCRAM-SHA-512": scram.SHA512}[s.Mechanism]
	login.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: hash} }
	login.TokenProvider = s
	return nil
}

// Token is asked for at each login with OAUTHBEARER.
func (s security) Token() (*sarama.AccessToken, error) {
	token, err := os.ReadFile(s.Tokens)
	return &sarama.AccessToken{Token: string(token)}, err
}

// conversation is one exchange of SCRAM, which Sarama leaves to others.
type conversation struct {
	*scram.ClientConversation
	hash scram.HashGeneratorFcn
}

func (c *conversation) Begin(user, password, authorization string) error {
	client, err := c.hash.NewClient(user, password, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}
