package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/loader"
)

// startNginxTLS starts an nginx that speaks TLS on the port and passes every
// request on to the upstream.
func startNginxTLS(t *testing.T, h *lab.Host, port uint16, upstream string) {
	t.Helper()
	dir := t.TempDir()
	writeCertificate(t, dir)
	conf := fmt.Sprintf(`daemon off;
user root;
worker_processes 1;
pid %[1]s/pid;
error_log stderr error;
events { }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	ssl_protocols TLSv1.2 TLSv1.3;
	ssl_certificate %[1]s/cert.pem;
	ssl_certificate_key %[1]s/key.pem;
	ssl_session_cache shared:tls:1m;
	server {
		listen %[2]d ssl;
		location / { proxy_pass http://%[3]s; }
	}
}
`, dir, port, upstream)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := h.Command(t.Context(), "nginx", "-p", dir, "-c", file, "-e", "stderr")
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatalf("start nginx: %v", err)
	}
	await(t, "nginx listens", func() (any, bool) { return nil, h.Listens(int(port)) })
}

func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(time.Hour),
		DNSNames:     []string{"localhost"},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServiceTimeOfFastTLS has a server that answers as fast as it sends its
// session tickets. What cannot be told from them is one request a connection
// at most, and none where the server ends it.
func TestServiceTimeOfFastTLS(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	httpServer(backend.Spec{Protocol: "https"})(t, srv, port)
	startAgent(t, srv, port, fixed(1000))
	var before uint64
	for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, oneShot := range []bool{true, false} {
			client := httpClient{path: "/", tls: tlsVersion(v), oneShot: oneShot}
			client.run(t, cli, netip.AddrPortFrom(srv.Addr4, port))
			time.Sleep(30 * time.Millisecond)
			h := measured(t, 0, loader.Service)
			got := h.Count - before
			before = h.Count
			least := uint64(asked)
			if v == tls.VersionTLS13 && !oneShot {
				least--
			}
			if got < least || got > asked {
				t.Errorf("%s, one shot %v: %d samples of %d requests", tls.VersionName(v), oneShot, got, asked)
			}
		}
	}
}
