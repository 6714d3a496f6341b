// Makes node's built-in `fetch` use the proxy from the environment variables. Node 22.21, 24.5 and later do so
// themselves, because guard sets NODE_USE_ENV_PROXY=1.
// guard loads this script into every node process of a run through NODE_OPTIONS. To keep node's start fast, the script
// loads no modules until the program calls `fetch`.
'use strict';
(() => {
  const proxy = process.env.https_proxy || process.env.http_proxy;
  const [major, minor] = process.versions.node.split('.').map(Number);
  const supportsProxy = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
  const { fetch } = globalThis;
  if (!proxy || supportsProxy || !fetch) return;

  const key = Symbol.for('undici.globalDispatcher.1');
  let isInstalled = false;

  const isDirect = (hostname) => {
    const host = hostname.replace(/^\[|\]$/g, '').toLowerCase();
    const rules = (process.env.no_proxy || '').toLowerCase().split(/[\s,]+/).filter(Boolean);
    return rules.some((rule) => {
      const name = rule.replace(/^\*?\./, '');
      return rule === '*' || host === name || host.endsWith('.' + name);
    });
  };

  // Connects to a server. For TLS, opens a tunnel through the proxy. If the proxy refuses the tunnel, the program gets
  // the proxy's message as the error.
  const connect = (options, callback) => {
    const net = require('node:net');
    const tls = require('node:tls');
    const { hostname, port: givenPort, protocol, servername } = options;
    const isTls = protocol === 'https:';
    const port = Number(givenPort) || (isTls ? 443 : 80);
    const host = hostname.replace(/^\[|\]$/g, '');
    const once = (error, socket) => {
      const report = callback;
      callback = () => {};
      report(error, socket);
    };
    const secured = (socket) => {
      const name = servername || (net.isIP(host) ? undefined : host);
      const secure = tls.connect({ host, port, socket, servername: name, ALPNProtocols: ['http/1.1'] });
      secure.once('secureConnect', () => once(null, secure)).once('error', (error) => once(error));
    };
    if (!isTls || isDirect(hostname)) {
      const socket = net.connect({ host, port, noDelay: true });
      socket.once('error', (error) => once(error));
      socket.once('connect', () => (isTls ? secured(socket) : once(null, socket)));
      return;
    }
    const authority = `${net.isIPv6(host) ? `[${host}]` : host}:${port}`;
    const proxyUrl = new URL(proxy);
    const request = require('node:http').request({
      host: proxyUrl.hostname, port: proxyUrl.port, method: 'CONNECT', path: authority, headers: { host: authority }, agent: false,
    });
    request.once('error', (error) => once(error));
    const refused = (response) => {
      request.destroy();
      once(new Error(response.statusMessage || `the proxy responded with status ${response.statusCode}`));
    };
    request.once('response', refused);
    request.once('connect', (response, socket) => {
      if (response.statusCode !== 200) {
        socket.destroy();
        return refused(response);
      }
      socket.setNoDelay(true);
      secured(socket);
    });
    request.end();
  };

  const install = () => {
    if (isInstalled) return;
    isInstalled = true;
    // Accessing `Response` makes node load undici, which sets the default dispatcher. The code below replaces it.
    void globalThis.Response;
    const usual = globalThis[key];
    // If the program has installed its own dispatcher, do not replace it.
    if (!usual || usual.constructor.name !== 'Agent') return;
    class Dispatcher extends usual.constructor {
      // For plain HTTP, the request line to the proxy contains the whole URL.
      dispatch(options, handler) {
        const origin = new URL(options.origin);
        if (origin.protocol !== 'http:' || isDirect(origin.hostname)) return super.dispatch(options, handler);
        const path = origin.origin + options.path;
        return super.dispatch({ ...options, origin: new URL(proxy).origin, path }, handler);
      }
    }
    globalThis[key] = new Dispatcher({ connect });
  };

  globalThis.fetch = { fetch(...given) { install(); return fetch.apply(this, given); } }.fetch;
})();
