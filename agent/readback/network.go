package readback

import "slices"

// network expects the loopback interface alone, up and with its own address, and
// no other address or route.
func (r *reader) network() {
	names, err := r.names("net/dev", parseInterfaces)
	r.compare("network interfaces", r.procPath("net/dev"), `["lo"]`, quoted(names), err)
	r.addresses()
	r.routes("routes", "net/route", parseRoutes)
	// A kernel without IPv6 has no such file.
	if _, err := r.proc("net/ipv6_route", maxNetwork); !absent(err) {
		r.routes("IPv6 routes", "net/ipv6_route", parseRoutes6)
	}
}

// addresses expects of the IPv4 forwarding tables what the kernel puts there for
// a loopback interface when it is set up, and takes away when it is set down.
func (r *reader) addresses() {
	const file = "net/fib_trie"
	found, err := r.names(file, parseForwarding)
	expected := []string{"127.0.0.0/8 LOCAL", "127.0.0.1/32 LOCAL", "127.255.255.255/32 BROADCAST"}
	r.compare("addresses and routes", r.procPath(file), quoted(expected), quoted(found), err)
}

func (r *reader) routes(setting, file string, parse func([]byte) ([]string, error)) {
	names, err := r.names(file, parse)
	names = slices.DeleteFunc(names, func(n string) bool { return n == "lo" })
	r.compare(setting+" to elsewhere", r.procPath(file), "[]", quoted(names), err)
}

// names reads what a file of the first process's network namespace lists.
func (r *reader) names(file string, parse func([]byte) ([]string, error)) ([]string, error) {
	b, err := r.proc(file, maxNetwork)
	if err != nil {
		return nil, err
	}
	return parse(b)
}
